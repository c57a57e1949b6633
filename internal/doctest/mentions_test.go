// SPDX-License-Identifier: Apache-2.0

package doctest

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestMentions_Exist(t *testing.T) {
	k := exists(t)
	for _, d := range documents(t) {
		for _, m := range k.unknown(d) {
			t.Errorf("%s: there is no %s %s", d.name, m.what, m.name)
		}
	}

	t.Run("what does not is found", func(t *testing.T) {
		d := parse(t, "x.md", "Run `make nothing` or `make demo`, see `TestNothingAtAll` and `TestMentions_Exist`, "+
			"`domain.Nothing`, `domain.Hypervisor`, `domain.Operation.Nothing`, `domain.Operation.Verb`, `net.Dial`, "+
			"`internal/nothing`, `internal/doctest`, `vmi/*.go`, `--nothing`, `--drain`, `-f`, `-z`, `-race`, `refdaemon nothing`, "+
			"`refdaemon`, `refdaemon config`, `refdaemon config nothing`, `virtloom_nothing`, `virtloom_vmi_waiting{by=\"user\"}`, `kubevirt_`.\n"+
			"```sh run\nrefdaemon node --drain 5m --nowhere\nrefdaemon diff \\\n  --live x --dead y -f z -q | grep --color x\nmake never\n```\n")
		want := []mention{
			{"make target", "never"}, {"flag of node", "nowhere"}, {"flag of diff", "dead"},
			{"make target", "nothing"}, {"test", "TestNothingAtAll"}, {"name", "domain.Nothing"}, {"name", "domain.Operation.Nothing"},
			{"path", "internal/nothing"}, {"flag", "--nothing"}, {"flag", "-z"}, {"command", "nothing"},
			{"flag of diff", "q"}, {"command", "config nothing"}, {"metric", "virtloom_nothing"},
		}
		got := k.unknown(d)
		for _, m := range want {
			if !slices.Contains(got, m) {
				t.Errorf("%+v is not found", m)
			}
		}
		if len(got) != len(want) {
			t.Errorf("found is %+v, want %+v", got, want)
		}
	})

	t.Run("all fuzz targets are listed", func(t *testing.T) {
		text, err := os.ReadFile(filepath.Join(root, "CONTRIBUTING.md"))
		if err != nil {
			t.Fatal(err)
		}
		_, list, found := strings.Cut(string(text), "\n## Fuzz targets\n")
		if !found {
			t.Fatal("CONTRIBUTING.md has no list of fuzz targets")
		}
		list, _, _ = strings.Cut(list, "\n## ")
		for _, name := range slices.Sorted(maps.Keys(k.fuzz)) {
			if !strings.Contains(list, "`"+name+"`") {
				t.Errorf("CONTRIBUTING.md does not list %s", name)
			}
		}
	})
}

func TestVersions_MatchModule(t *testing.T) {
	read := func(name string) string {
		text, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	_, table, _ := strings.Cut(read("README.md"), "\n## Compatibility\n")
	for _, module := range []string{
		"kubevirt.io/api", "kubevirt.io/containerized-data-importer-api", "k8s.io/api", "sigs.k8s.io/controller-runtime", "libvirt.org/go/libvirt",
	} {
		_, rest, found := strings.Cut(read("go.mod"), module+" v")
		version, _, _ := strings.Cut(rest, "\n")
		version, _, _ = strings.Cut(version, " ")
		if !found || !strings.Contains(table, "v"+version) {
			t.Errorf("README.md does not say that the module needs %s v%s", module, version)
		}
	}
}

// What is written says nothing about the machine it was written on.
func TestDocuments_NoMachinePaths(t *testing.T) {
	here, err := filepath.Abs(root)
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range documents(t) {
		for _, word := range []string{"/root/", "/home/", here} {
			if strings.Contains(d.text, word) {
				t.Errorf("%s names %s", d.name, word)
			}
		}
	}
}
