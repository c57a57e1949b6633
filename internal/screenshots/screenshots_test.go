// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

// printed is what a demo might print.
const printed = `
== Applying the manifests of a guest (examples/first-guest)
   4.35s  examples/first-guest/guest.yaml    applied
   4.57s  Pod/virt-launcher-first-guest-watub6negx phase Pending
   7.85s  demo                               checked - exactly one Pod and one domain before the migration

== Migrating the guest to the other node, live
   8.22s  VMI/first-guest                    lease Moving, epoch 2 - holder node-a target node-b
   8.73s  migration                          [..............................]   3 %  125 of 129 MiB remain, iteration 1
   9.14s  migration                          [##............................]   9 %  117 of 129 MiB remain, 20 MiB/s, iteration 1
   9.46s  migration                          [#####.........................]  17 %  107 of 129 MiB remain, 20 MiB/s, iteration 1
   9.88s  migration                          [#######.......................]  24 %  98 of 129 MiB remain, 20 MiB/s, iteration 1
  10.30s  migration                          [###########...................]  37 %  81 of 129 MiB remain, 20 MiB/s, iteration 1
  10.72s  migration                          [##############................]  48 %  67 of 129 MiB remain, 20 MiB/s, iteration 1
  13.24s  VMIM/first-guest                   phase Succeeded
  13.25s  Event/VirtualMachineInstance       a very long line, such as those about the progress of a migration <are> & which no picture has room for

== Summary
  ok      the guest moved from node-a to node-b
  took    the longest pause between two heartbeats was 279 ms
Everything was seen, in 15.5 seconds.
`

func migration(t *testing.T) []string {
	t.Helper()
	lines, err := act(printed, "Migrating the guest")
	if err != nil {
		t.Fatal(err)
	}
	return lines
}

func TestActs_Found(t *testing.T) {
	for name, tt := range map[string]struct {
		heading, first, last string
		lines                int
	}{
		"first": {"Applying the manifests of a guest", "== Applying the manifests of a guest (examples/first-guest)",
			"   7.85s  demo                               checked - exactly one Pod and one domain before the migration", 4},
		"last": {"Summary", "== Summary", "Everything was seen, in 15.5 seconds.", 4},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := act(printed, tt.heading)
			if err != nil || len(got) != tt.lines || got[0] != tt.first || got[len(got)-1] != tt.last {
				t.Errorf("error %v, lines %q", err, got)
			}
		})
	}
	if _, err := act(printed, "Flying"); err == nil {
		t.Error("an act that is not there is found")
	}
}

func TestAbridge_LongSequence(t *testing.T) {
	got := abridge(migration(t))
	want := []string{"8.22s", "8.73s", "9.14s", "9.46s", more, "10.30s", "10.72s", "13.24s", "13.25s"}
	for i, l := range got[1:] {
		if i >= len(want) || !strings.Contains(l, want[i]) {
			t.Fatalf("line %d is %q, want those of %q", i, l, want)
		}
		if utf8.RuneCountInString(l) > width {
			t.Errorf("%q is too long", l)
		}
	}
	if !strings.HasSuffix(got[len(got)-1], more) {
		t.Errorf("%q does not say that there is more", got[len(got)-1])
	}
}

func TestPicture_Deterministic(t *testing.T) {
	lines := abridge(migration(t))
	picture := draw(lines)
	got, err := read(picture)
	if err != nil || !slices.Equal(got, lines) {
		t.Errorf("error %v, lines\n%s\nwant\n%s", err, strings.Join(got, "\n"), strings.Join(lines, "\n"))
	}
	if !bytes.Equal(picture, draw(lines)) {
		t.Error("it is another picture the next time")
	}
	if _, err := read([]byte("<svg>")); err == nil {
		t.Error("half a picture is read")
	}
}

func TestCompare_IgnoresTimesAndOrder(t *testing.T) {
	for name, tt := range map[string]struct {
		change func([]string) []string
		same   bool
	}{
		"the same": {func(l []string) []string { return l }, true},
		"other times, names, nodes, numbers and order": {func(l []string) []string {
			r := strings.NewReplacer("8.22s", "18.5s", "node-a", "node-b", "20 MiB/s", "7 MiB/s", "epoch 2", "epoch 12", " 117 of", " 17 of")
			for i := range l {
				l[i] = r.Replace(l[i])
			}
			slices.Reverse(l[1:])
			return l
		}, true},
		"one line is another": {func(l []string) []string { l[1] = "   8.22s  VMI/first-guest                    lease Gone"; return l }, true},
		"many lines are others": {func(l []string) []string {
			for i := range l[1:] {
				l[i+1] = fmt.Sprintf("   %d.00s  VMI/first-guest                    flies", i)
			}
			return l
		}, false},
		"another act": {func(l []string) []string { l[0] = "== Flying"; return l }, false},
	} {
		t.Run(name, func(t *testing.T) {
			if err := compare(abridge(migration(t)), tt.change(migration(t))); (err == nil) != tt.same {
				t.Errorf("error %v, the same: %v", err, tt.same)
			}
		})
	}
	if compare(nil, migration(t)) == nil {
		t.Error("an empty picture shows everything")
	}
}

func TestCommand_DrawAndCheck(t *testing.T) {
	dir := t.TempDir()
	demo := filepath.Join(dir, "demo.log")
	if err := os.WriteFile(demo, []byte(printed), 0o600); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := run([]string{"-demo", demo, "-dir", dir, "-check"}, &out); err == nil {
		t.Error("pictures that are not there show what the demo prints")
	}
	if err := run([]string{"-demo", demo, "-dir", dir}, &out); err != nil {
		t.Fatal(err)
	}
	if err := run([]string{"-demo", demo, "-dir", dir, "-check"}, &out); err != nil {
		t.Error(err)
	}
	if err := os.WriteFile(demo, []byte(strings.ReplaceAll(printed, "moved from", "walked from")), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := run([]string{"-demo", demo, "-dir", dir, "-check"}, &out); err == nil || !strings.Contains(err.Error(), "go run ./internal/screenshots") {
		t.Errorf("error %v of a picture that is old", err)
	}
	if err := run([]string{"-demo", filepath.Join(dir, "no.log")}, &out); err == nil {
		t.Error("pictures are drawn of nothing")
	}
}

func TestPictures_OfDocuments(t *testing.T) {
	for _, s := range scenes {
		picture, err := os.ReadFile(filepath.Join("../../docs/images", s.file))
		if err != nil {
			t.Error(err)
			continue
		}
		lines, err := read(picture)
		if err != nil || len(lines) < 3 || !strings.HasPrefix(lines[0], "== "+s.heading) {
			t.Errorf("%s: error %v, lines %q", s.file, err, lines)
		}
	}
}
