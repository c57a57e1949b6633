// SPDX-License-Identifier: Apache-2.0

package explore

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// begun returns the machine of a scenario, and its first world.
func begun(t *testing.T, s *Scenario) (*machine, world) {
	t.Helper()
	m, err := s.newMachine(&memory{})
	if err != nil {
		t.Fatal(err)
	}
	w, err := s.first(m)
	if err != nil {
		t.Fatal(err)
	}
	return m, w
}

// play runs a script in a world of our own protocol.
func play(t *testing.T, script string) (*replay, error) {
	t.Helper()
	m, w := begun(t, &Scenario{})
	for f := range w.left {
		w.left[f] = unlimited
	}
	r := &replay{m: m, w: w}
	return r, r.run(script)
}

func TestReplays(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil {
		t.Fatal(err)
	}
	if len(files) < 7 {
		t.Fatalf("%d replays, want at least 7", len(files))
	}
	for _, f := range files {
		t.Run(strings.TrimSuffix(filepath.Base(f), ".txt"), func(t *testing.T) {
			script, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			if !strings.Contains(string(script), "expect ") {
				t.Fatal("the replay expects nothing")
			}
			r, err := play(t, string(script))
			if err != nil {
				t.Fatalf("%v (%s)", err, describe(&r.w))
			}
			if err := r.m.rests(r.w); err != nil {
				t.Errorf("in the end: %v", err)
			}
			show(t, "replay %-28s as expected, ends with %s", strings.TrimSuffix(filepath.Base(f), ".txt"), leaseOf(&r.w))
		})
	}
}

func TestReplay_Errors(t *testing.T) {
	for name, tc := range map[string]struct{ script, want string }{
		"no such line":        {"c1 dances", "line 1: c1 dances: there is no such line"},
		"not possible":        {"settle\nkubelet removes launcher", "line 2"},
		"possible after all":  {"never c1 works on vmi", "that this is possible is true"},
		"wrong expectation":   {"settle\nexpect a=none", `a is "running", want "none"`},
		"no such fact":        {"expect moon=full", `there is no fact "moon"`},
		"no such process":     {"d sees everything", "there is no such process"},
		"comments are no use": {"# nothing\n\nexpect a=running # yet", "line 3"},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := play(t, tc.script); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want %q in it", err, tc.want)
			}
		})
	}
}

func TestAction_RoundTrip(t *testing.T) {
	for d := range doesCount {
		for _, a := range []action{{d, 1, 1}, {d, 2, 0}} {
			switch line := a.String(); {
			case strings.Contains(line, "WHO"), strings.Contains(line, "WHAT"), line == "":
				t.Errorf("action %d prints as %q", d, line)
			default:
				got, ok := parseAction(line)
				if !ok || got.String() != line || got.does != d {
					t.Errorf("%q reads as %v (%t)", line, got, ok)
				}
			}
		}
	}
}
