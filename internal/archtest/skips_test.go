// SPDX-License-Identifier: Apache-2.0

package archtest

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// checkSkips passes what gotestsum printed to the script that compares the skipped tests with a list, and returns what that prints and
// whether it succeeds.
func checkSkips(t *testing.T, list, printed string) (out string, ok bool) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "skips.txt")
	if err := os.WriteFile(path, []byte(list), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "awk", "-f", filepath.Join(root, "hack", "skips.awk"), path, "-")
	cmd.Stdin = strings.NewReader(printed)
	text, err := cmd.CombinedOutput()
	if err != nil && !errors.As(err, new(*exec.ExitError)) {
		t.Fatal(err)
	}
	return string(text), err == nil
}

func TestSkips_Unlisted(t *testing.T) {
	const list = "# those that may\n\nvmi TestGuest needs an iron # the machines that run the tests have none\n"
	for name, tt := range map[string]struct {
		test, reason string
		ok           bool
	}{
		"on the list":     {"vmi TestGuest", "needs an iron: buy one", true},
		"a subtest":       {"vmi TestGuest/a_b", "needs an iron", true},
		"another reason":  {"vmi TestGuest", "broken", false},
		"another test":    {"vmi TestGuests", "needs an iron", false},
		"another package": {"vmi/vmictrl TestGuest", "needs an iron", false},
	} {
		t.Run(name, func(t *testing.T) {
			out, ok := checkSkips(t, list, "PASS  p (1s)\n\n=== Skipped\n=== SKIP: "+tt.test+" (0.00s)\n    x_test.go:1: "+tt.reason+"\n\nDONE 2 tests, 1 skipped in 1s\n")
			refused := strings.Contains(out, "FAILED   "+tt.test+" was skipped, which hack/skips.txt does not allow: "+tt.reason+"\n")
			if ok != tt.ok || refused == tt.ok || !strings.HasPrefix(out, "PASS  p (1s)\n") || !strings.HasSuffix(out, "\nDONE 2 tests, 1 passed, 1 skipped in 1s\n") {
				t.Errorf("ok %v:\n%s", ok, out)
			}
		})
	}
}

func TestSkips_MissingReason(t *testing.T) {
	for _, line := range []string{"vmi TestGuest # why\n", "vmi TestGuest needs an iron\n", "vmi TestGuest needs an iron #\n"} {
		if out, ok := checkSkips(t, line, "DONE 1 tests in 1s\n"); ok || !strings.Contains(out, "skips.txt:1: want ") {
			t.Errorf("%q: ok %v:\n%s", line, ok, out)
		}
	}
}

func TestSkips_Printed(t *testing.T) {
	const list = "p TestC no # why\np TestD no reason # why\n"
	const printed = `
=== Skipped
=== SKIP: p TestC/a (0.00s)
    c_test.go:9: no agent

=== SKIP: p TestC/b (0.00s)
    c_test.go:9: no agent
    c_test.go:10: at: all

=== SKIP: p TestC/c_d/e (0.00s)
    c_test.go:9: no agent
    c_test.go:10: at: all

=== SKIP: p TestD (0.00s)

=== Failed
=== FAIL: p TestE (0.00s)
    e_test.go:9: no

=== FAIL: q  (0.00s)
    it does not build

DONE 8 tests, 4 skipped, 2 failures in 1s
`
	const want = `
SKIPPED  p TestC: no agent
         - a
SKIPPED  p TestC: no agent at: all
         - b
         - c_d/e
SKIPPED  p TestD: no reason given
=== Failed
=== FAIL: p TestE (0.00s)
    e_test.go:9: no

=== FAIL: q  (0.00s)
    it does not build

DONE 8 tests, 3 passed, 4 skipped, 2 failures in 1s
`
	if out, ok := checkSkips(t, list, printed); !ok || out != want {
		t.Errorf("ok %v:\n%s", ok, out)
	}
	if out, ok := checkSkips(t, list, "DONE 0 tests in 1s\n"); ok || !strings.Contains(out, "FAILED   no test ran\n") {
		t.Errorf("nothing ran: ok %v:\n%s", ok, out)
	}
}
