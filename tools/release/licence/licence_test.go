// SPDX-License-Identifier: Apache-2.0

package licence

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const isc = `Copyright (c) 2026 Somebody

Permission to use, copy, modify, and/or distribute this software for any purpose with or without fee is hereby granted, provided
that the above copyright notice and this permission notice appear in all copies.

THE SOFTWARE IS PROVIDED "AS IS" AND THE AUTHOR DISCLAIMS ALL WARRANTIES WITH REGARD TO THIS SOFTWARE INCLUDING ALL IMPLIED
WARRANTIES OF MERCHANTABILITY AND FITNESS. IN NO EVENT SHALL THE AUTHOR BE LIABLE FOR ANY SPECIAL, DIRECT, INDIRECT, OR
CONSEQUENTIAL DAMAGES OR ANY DAMAGES WHATSOEVER RESULTING FROM LOSS OF USE, DATA OR PROFITS, WHETHER IN AN ACTION OF CONTRACT,
NEGLIGENCE OR OTHER TORTIOUS ACTION, ARISING OUT OF OR IN CONNECTION WITH THE USE OR PERFORMANCE OF THIS SOFTWARE.
`

// apache is this module's own.
func apache(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("../../../LICENSE")
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestOf(t *testing.T) {
	for name, tt := range map[string]struct {
		files map[string]string
		want  []string
		texts int
		err   string
	}{
		"at the root":               {map[string]string{"LICENSE": isc}, []string{"ISC"}, 1, ""},
		"beside the package":        {map[string]string{"LICENSE": apache(t), "a/b/COPYING": isc}, []string{"Apache-2.0", "ISC"}, 2, ""},
		"of another package":        {map[string]string{"LICENSE": apache(t), "a/c/LICENSE": isc}, []string{"Apache-2.0"}, 1, ""},
		"with a notice":             {map[string]string{"LICENCE.txt": isc, "NOTICE": "made by Somebody"}, []string{"ISC"}, 2, ""},
		"code that is named alike":  {map[string]string{"LICENSE": isc, "a/license.go": "package a"}, []string{"ISC"}, 1, ""},
		"none":                      {map[string]string{"README": isc}, nil, 0, "has no file with a licence"},
		"a notice alone":            {map[string]string{"NOTICE": "made by Somebody"}, nil, 0, "has no file with a licence"},
		"a licence that nobody has": {map[string]string{"LICENSE": "Do as you please. " + strings.Repeat("Or else. ", 50)}, nil, 0, "LICENSE: only 0 %"},
		"more than the licence says": {map[string]string{"LICENSE": isc + strings.Repeat("You owe us a fee of your own choice for each of your guests. ", 20)},
			nil, 0, "LICENSE: only"},
	} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			dir := filepath.Join(root, "a", "b")
			if err := os.MkdirAll(dir, 0o755); err != nil {
				t.Fatal(err)
			}
			for file, text := range tt.files {
				file = filepath.Join(root, file)
				if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			files, err := Of(dir, root)
			if tt.err != "" {
				if err == nil || !strings.Contains(err.Error(), tt.err) {
					t.Errorf("error %v, want one with %q", err, tt.err)
				}
				return
			}
			if got := IDs(files); err != nil || !slices.Equal(got, tt.want) || len(files) != tt.texts {
				t.Errorf("%v in %d files, %v; want %v in %d", got, len(files), err, tt.want, tt.texts)
			}
		})
	}
}

func TestOf_OutsideModule(t *testing.T) {
	if _, err := Of(t.TempDir(), t.TempDir()); err == nil || !strings.Contains(err.Error(), "is not in") {
		t.Errorf("error %v", err)
	}
}

func TestRefused(t *testing.T) {
	for name, tt := range map[string]struct {
		module    string
		ids, want []string
	}{
		"allowed":               {"m", []string{"MIT", "ISC"}, nil},
		"not allowed":           {"m", []string{"GPL-3.0", "MIT"}, []string{"GPL-3.0"}},
		"excepted":              {"github.com/opencontainers/go-digest", []string{"Apache-2.0", "CC-BY-SA-4.0"}, nil},
		"excepted elsewhere":    {"m", []string{"CC-BY-SA-4.0"}, []string{"CC-BY-SA-4.0"}},
		"excepted of something": {"github.com/opencontainers/go-digest", []string{"AGPL-3.0"}, []string{"AGPL-3.0"}},
	} {
		t.Run(name, func(t *testing.T) {
			if got := Refused(tt.module, tt.ids); !slices.Equal(got, tt.want) {
				t.Errorf("%v, want %v", got, tt.want)
			}
		})
	}
}
