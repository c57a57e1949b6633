// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestAllowed_UnlistedSkip(t *testing.T) {
	list := filepath.Join(t.TempDir(), "skips.txt")
	text := "# those that may\n\nvmi TestGuest needs an iron # the machines that run the tests have none\n"
	if err := os.WriteFile(list, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	may, err := readAllowed(list)
	if err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		pkg, test, reason string
		want              bool
	}{
		"on the list":     {"vmi", "TestGuest", "needs an iron: buy one", true},
		"a subtest":       {"vmi", "TestGuest/a_b", "needs an iron", true},
		"another reason":  {"vmi", "TestGuest", "broken", false},
		"another test":    {"vmi", "TestGuests", "needs an iron", false},
		"another package": {"vmi/vmictrl", "TestGuest", "needs an iron", false},
	} {
		t.Run(name, func(t *testing.T) {
			at := `"Package":"github.com/virtloom/virtloom/` + tc.pkg + `","Test":"` + tc.test + `"}`
			events := `{"Action":"pass","Package":"p","Test":"TestA"}` + "\n" +
				`{"Action":"output","Output":"    x_test.go:1: ` + tc.reason + `\n",` + at + "\n" + `{"Action":"skip",` + at
			var out strings.Builder
			ok, err := summarize(strings.NewReader(events), &out, may)
			if err != nil || ok != tc.want {
				t.Errorf("ok %v, error %v, want %v:\n%s", ok, err, tc.want, out.String())
			}
			if strings.Contains(out.String(), "FAILED   "+tc.pkg+" "+tc.test+" was skipped") == tc.want {
				t.Errorf("it says:\n%s", out.String())
			}
			if ok, err = summarize(strings.NewReader(events), &out, nil); err != nil || !ok {
				t.Errorf("without a list: ok %v, error %v", ok, err)
			}
		})
	}
}

func TestAllowed_MissingReason(t *testing.T) {
	list := filepath.Join(t.TempDir(), "skips.txt")
	for _, line := range []string{"vmi TestGuest # why\n", "vmi TestGuest needs an iron\n", "vmi TestGuest needs an iron #\n"} {
		if err := os.WriteFile(list, []byte(line), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := readAllowed(list); err == nil || !strings.Contains(err.Error(), "skips.txt:1") {
			t.Errorf("%q: error %v", line, err)
		}
	}
	if _, err := readAllowed(filepath.Join(t.TempDir(), "none")); err == nil {
		t.Error("a list that is not there is taken")
	}
}
