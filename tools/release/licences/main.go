// SPDX-License-Identifier: Apache-2.0

// Command licences looks at the licences of all that the module in a folder is built from and tested with.
//
//	licences -C DIR                  fails if a licence is unknown or not among those allowed
//	licences -C DIR -notices FILE    writes the texts that have to be passed on with refdaemon
//
// What only builds or checks the module, such as a linter, is no part of anything that is passed on, and not looked at.
package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/virtloom/virtloom/tools/release/licence"
)

// variants are the ways to build the module.
var variants = []struct {
	env  []string
	args []string
}{
	{[]string{"CGO_ENABLED=0", "GOARCH=amd64"}, nil},
	{[]string{"CGO_ENABLED=0", "GOARCH=arm64"}, nil},
	{[]string{"CGO_ENABLED=1", "GOARCH=" + runtime.GOARCH}, []string{"-tags", "libvirt_dlopen"}},
}

// pkg is a package in the output of "go list -json".
type pkg struct {
	ImportPath, Dir string
	Standard        bool
	Module          *struct {
		Path, Version, Dir string
		Main               bool
	}
}

func main() {
	dir := flag.String("C", ".", "the folder of the module")
	file := flag.String("notices", "", "write the texts to pass on with refdaemon to this file")
	flag.Parse()
	if err := run(*dir, *file); err != nil {
		fmt.Fprintln(os.Stderr, "licences:", err)
		os.Exit(1)
	}
}

func run(dir, file string) error {
	what := []string{"-test", "./..."}
	if file != "" {
		what = []string{"./refdaemon"}
	}
	found, err := collect(dir, what)
	if err != nil {
		return err
	}
	var wrong []error
	count := map[string]int{}
	for _, m := range slices.Sorted(maps.Keys(found)) {
		ids := licence.IDs(found[m])
		for _, id := range ids {
			count[id]++
		}
		module, _, _ := strings.Cut(m, " ")
		if refused := licence.Refused(module, ids); len(refused) > 0 {
			wrong = append(wrong, fmt.Errorf("%s is under %s, which is not among those allowed: %s",
				m, strings.Join(refused, ", "), strings.Join(licence.Allowed, ", ")))
		}
	}
	if err := errors.Join(wrong...); err != nil || file == "" {
		fmt.Printf("%d modules:", len(found))
		for _, id := range slices.Sorted(maps.Keys(count)) {
			fmt.Printf(" %s %d", id, count[id])
		}
		fmt.Println()
		return err
	}
	return os.WriteFile(file, notices(found), 0o644)
}

// collect finds the files of all packages that these depend on, by module and version.
func collect(dir string, what []string) (map[string][]licence.File, error) {
	found := map[string][]licence.File{}
	for _, v := range variants {
		pkgs, err := list(dir, v.env, append(slices.Clone(v.args), what...))
		if err != nil {
			return nil, err
		}
		for _, p := range pkgs {
			if p.Standard || p.Module == nil || p.Module.Main {
				continue
			}
			files, err := licence.Of(p.Dir, p.Module.Dir)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", p.ImportPath, err)
			}
			name := p.Module.Path + " " + p.Module.Version
			found[name] = merge(found[name], files)
		}
	}
	std, err := ofGo()
	if err != nil {
		return nil, err
	}
	found["Go "+runtime.Version()] = std
	return found, nil
}

// merge is the files of both, each once, in the order of their paths.
func merge(a, b []licence.File) []licence.File {
	all := slices.Concat(a, b)
	slices.SortFunc(all, func(x, y licence.File) int { return cmp.Compare(x.Path, y.Path) })
	return slices.CompactFunc(all, func(x, y licence.File) bool { return x.Path == y.Path })
}

// ofGo are the files of the standard library.
func ofGo() ([]licence.File, error) {
	out, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		return nil, fmt.Errorf("go env: %w", err)
	}
	root := strings.TrimSpace(string(out))
	return licence.Of(root, root)
}

func list(dir string, env, args []string) ([]pkg, error) {
	cmd := exec.Command("go", append([]string{"list", "-deps", "-json=ImportPath,Dir,Standard,Module"}, args...)...)
	var stderr bytes.Buffer
	cmd.Dir, cmd.Stderr, cmd.Env = dir, &stderr, append(os.Environ(), env...)
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w\n%s", err, stderr.String())
	}
	var pkgs []pkg
	for dec := json.NewDecoder(bytes.NewReader(out)); ; {
		var p pkg
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			return pkgs, nil
		} else if err != nil {
			return nil, err
		}
		pkgs = append(pkgs, p)
	}
}

// notices writes each text once, below the names of the modules that it is from.
func notices(found map[string][]licence.File) []byte {
	from := map[string][]string{}
	for m, files := range found {
		for _, f := range files {
			from[f.Text] = append(from[f.Text], m+": "+filepath.Base(f.Path))
		}
	}
	texts := slices.Collect(maps.Keys(from))
	for _, t := range texts {
		slices.Sort(from[t])
		from[t] = slices.Compact(from[t])
	}
	slices.SortFunc(texts, func(a, b string) int { return cmp.Or(slices.Compare(from[a], from[b]), cmp.Compare(a, b)) })
	var out bytes.Buffer
	fmt.Fprintf(&out, "refdaemon is under the Apache License 2.0 and built from these modules, which are under the licences that follow.\n")
	for _, t := range texts {
		fmt.Fprintf(&out, "\n%s\n%s\n\n%s\n", strings.Repeat("=", 80), strings.Join(from[t], "\n"), strings.TrimSpace(t))
	}
	return out.Bytes()
}
