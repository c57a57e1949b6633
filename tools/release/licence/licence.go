// SPDX-License-Identifier: Apache-2.0

// Package licence identifies the licences of a package of another module: from the files that say so in its folder and in
// those above it, up to the root of its module. Nothing is downloaded.
package licence

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"

	"github.com/google/licensecheck"
)

// Allowed are the licences under which a program may be that is passed on under the Apache License 2.0: those that ask for no
// more than that their text is passed on with it.
var Allowed = []string{"Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "ISC", "MIT", "0BSD", "CC0-1.0", "Unlicense"}

// excepted are licences of single modules that are right as they are used here, and why.
var excepted = map[string]map[string]string{
	"github.com/cyphar/filepath-securejoin": {
		"MPL-2.0": "holds for each file by itself; they are used unchanged, and what is passed on says where they are from",
	},
	"github.com/opencontainers/go-digest": {"CC-BY-SA-4.0": "holds for its documentation, which is not used"},
}

// enough is how much of a file has to be text of known licences, in percent. The rest is names and years of holders, and what
// surrounds the text.
const enough = 75

// named are the files that say what a licence is, and notices those that are passed on with it.
var (
	named   = regexp.MustCompile(`(?i)^(un)?licen[cs]e([-._].*)?$|^copying([-._].*)?$|^(mit|bsd|apache)-licen[cs]e([-._].*)?$`)
	notices = regexp.MustCompile(`(?i)^(notice|patents|authors)([-._](md|txt))?$`)
	code    = regexp.MustCompile(`\.(go|s|c|h)$`)
)

// File is one that says under which licences something is.
type File struct {
	Path string
	Text string
	// IDs are SPDX's names of the licences; none for a notice.
	IDs []string
}

// Of finds the files for a package in a folder of a module.
func Of(dir, root string) ([]File, error) {
	var found []File
	for {
		files, err := in(dir)
		if err != nil {
			return nil, err
		}
		found = append(found, files...)
		if dir == root {
			break
		}
		parent := filepath.Dir(dir)
		if len(parent) < len(root) || parent == dir {
			return nil, fmt.Errorf("%s is not in %s", dir, root)
		}
		dir = parent
	}
	if len(IDs(found)) == 0 {
		return nil, fmt.Errorf("%s has no file with a licence", root)
	}
	return found, nil
}

// in reads those of one folder.
func in(dir string) ([]File, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var found []File
	for _, e := range entries {
		isLicence := named.MatchString(e.Name()) && !code.MatchString(e.Name())
		if e.IsDir() || !isLicence && !notices.MatchString(e.Name()) {
			continue
		}
		path := filepath.Join(dir, e.Name())
		text, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		f := File{Path: path, Text: string(text)}
		if isLicence {
			if f.IDs, err = identify(text); err != nil {
				return nil, fmt.Errorf("%s: %w", path, err)
			}
		}
		found = append(found, f)
	}
	return found, nil
}

// identify returns the licences whose text matches.
func identify(text []byte) ([]string, error) {
	cover := licensecheck.Scan(text)
	var ids []string
	for _, m := range cover.Match {
		if !m.IsURL && !slices.Contains(ids, m.ID) {
			ids = append(ids, m.ID)
		}
	}
	if cover.Percent < enough || len(ids) == 0 {
		return nil, fmt.Errorf("only %.0f %% of it is known as a licence %v", cover.Percent, ids)
	}
	slices.Sort(ids)
	return ids, nil
}

// IDs are all licences of files, sorted.
func IDs(files []File) []string {
	var ids []string
	for _, f := range files {
		ids = append(ids, f.IDs...)
	}
	slices.Sort(ids)
	return slices.Compact(ids)
}

// Refused are those of the licences of a module that are neither allowed nor excepted.
func Refused(module string, ids []string) []string {
	return slices.DeleteFunc(slices.Clone(ids), func(id string) bool {
		return slices.Contains(Allowed, id) || excepted[module][id] != ""
	})
}
