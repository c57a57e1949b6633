// SPDX-License-Identifier: Apache-2.0

package handoff_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/handoff"
)

func TestMarshalJSON_Stable(t *testing.T) {
	for name, lease := range map[string]handoff.Lease{
		"unclaimed": {},
		"claimed":   lead(t, handoff.Lease{}, ev(handoff.Claim, "")),
		"accepted":  lead(t, handoff.Lease{}, ev(handoff.Offer, nodeA), ev(handoff.Accept, nodeA)),
		"stalled":   lead(t, moving(t), ev(handoff.Abort, ""), ev(handoff.Stall, nodeA)),
		"lost":      lead(t, moving(t), ev(handoff.Suspect, nodeA)),
		"moved":     lead(t, moving(t), ev(handoff.TakeOver, nodeB), ev(handoff.Finalize, nodeB)),
		"released":  lead(t, owned(t), handoff.Event{Kind: handoff.Release, Node: nodeA, Message: "ünïcode \"quoted\" <&>\n"}),
	} {
		t.Run(name, func(t *testing.T) {
			raw, err := json.MarshalIndent(lease, "", "  ")
			if err != nil {
				t.Fatal(err)
			}
			raw = append(raw, '\n')
			golden := filepath.Join("testdata", name+".json")
			if flag.Lookup("update").Value.String() == "true" {
				if err := os.WriteFile(golden, raw, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden) //nolint:gosec // a fixed name
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), string(raw)); diff != "" {
				t.Errorf("(-want +got; rewrite with -update):\n%s", diff)
			}
			var read handoff.Lease
			if err := json.Unmarshal(want, &read); err != nil || !read.Equal(lease) {
				t.Errorf("read back as %+v, %v", read, err)
			}
		})
	}
}

func TestUnmarshalJSON_KeepsUnknownFields(t *testing.T) {
	const raw = `{"version":1,"state":"Offered","epoch":1,"holder":"a","zone":{"z":[1, 2.50]},"answer":42}`
	var l handoff.Lease
	if err := json.Unmarshal([]byte(raw), &l); err != nil {
		t.Fatal(err)
	}
	next := lead(t, l, ev(handoff.Accept, nodeA))
	got, err := json.Marshal(next)
	if err != nil || !strings.HasSuffix(string(got), `,"answer":42,"zone":{"z":[1,2.50]}}`) || !strings.Contains(string(got), `"state":"Owned"`) {
		t.Errorf("%s, %v", got, err)
	}
	if next.Equal(lead(t, handoff.Lease{}, ev(handoff.Offer, nodeA), ev(handoff.Accept, nodeA))) {
		t.Error("Equal does not see the unknown fields")
	}
}

func TestUnmarshalJSON_NameInOtherCase(t *testing.T) {
	var l handoff.Lease
	if err := json.Unmarshal([]byte(`{"version":1,"STATE":"Owned","epoch":1,"Holder":"a"}`), &l); err != nil {
		t.Fatal(err)
	}
	want := lead(t, l, ev(handoff.Release, nodeA))
	raw, err := json.Marshal(want)
	if err != nil || json.Unmarshal(raw, &l) != nil || !l.Equal(want) {
		t.Errorf("written as %s, read as %+v, %v", raw, l, err)
	}
}

func TestOf_NotALease(t *testing.T) {
	for name, raw := range map[string]string{
		"no JSON":                 `{`,
		"not an object":           `7`,
		"null":                    `null`,
		"no version":              `{"state":"Owned","epoch":1,"holder":"a"}`,
		"a later version":         `{"version":2,"state":"Owned","epoch":1,"holder":"a"}`,
		"an unknown state":        `{"version":1,"state":"Stolen","epoch":1,"holder":"a"}`,
		"a negative epoch":        `{"version":1,"state":"Owned","epoch":-1,"holder":"a"}`,
		"nobody owns it":          `{"version":1,"state":"Owned","epoch":1}`,
		"a holder of nothing":     `{"version":1,"epoch":1,"holder":"a"}`,
		"a move to nowhere":       `{"version":1,"state":"Moving","epoch":1,"holder":"a"}`,
		"a move to itself":        `{"version":1,"state":"Moving","epoch":1,"holder":"a","target":"a"}`,
		"a target without a move": `{"version":1,"state":"Owned","epoch":1,"holder":"a","target":"b"}`,
		"stalled without a move":  `{"version":1,"state":"Owned","epoch":1,"holder":"a","stalled":true}`,
		"lost from nowhere":       `{"version":1,"state":"Lost","epoch":1,"holder":"a"}`,
		"lost from the end":       `{"version":1,"state":"Lost","epoch":1,"holder":"a","was":"Released"}`,
		"lost without its target": `{"version":1,"state":"Lost","epoch":1,"holder":"a","was":"Moving"}`,
		"was, but is not lost":    `{"version":1,"state":"Owned","epoch":1,"holder":"a","was":"Owned"}`,
	} {
		t.Run(name, func(t *testing.T) {
			vmi := &v1.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{
				Namespace: "ns", Name: "guest", Annotations: map[string]string{handoff.Annotation: raw}}}
			_, err := handoff.Of(vmi)
			if !errors.Is(err, handoff.ErrNotALease) || !strings.Contains(err.Error(), "ns/guest") || !strings.Contains(err.Error(), handoff.Annotation) {
				t.Fatalf("error %v, want one that names object and annotation", err)
			}
		})
	}
}

func FuzzLease(f *testing.F) {
	seeds, err := filepath.Glob("testdata/*.json")
	if err != nil || len(seeds) == 0 {
		f.Fatal("no seeds", err)
	}
	for _, s := range seeds {
		raw, err := os.ReadFile(s) //nolint:gosec // from Glob
		if err != nil {
			f.Fatal(err)
		}
		f.Add(raw, "Accept", uint64(1), "a")
	}
	f.Fuzz(func(t *testing.T, raw []byte, kind string, epoch uint64, node string) {
		var l handoff.Lease
		if err := json.Unmarshal(raw, &l); err != nil {
			return
		}
		once, err := json.Marshal(l)
		if err != nil {
			t.Fatalf("%+v was read and cannot be written: %v", l, err)
		}
		var again handoff.Lease
		if err := json.Unmarshal(once, &again); err != nil {
			t.Fatalf("%s was written and cannot be read: %v", once, err)
		}
		twice, err := json.Marshal(again)
		if err != nil || !bytes.Equal(once, twice) {
			t.Fatalf("written as %s, then as %s, %v", once, twice, err)
		}
		e := handoff.Event{Kind: handoff.Kind(kind), Node: node, Epoch: epoch, Tag: tag, Evidence: &handoff.Evidence{Kind: handoff.NodeGone}}
		next, _, err := handoff.Step(l, e, now)
		if err != nil && !next.Equal(l) {
			t.Fatalf("a refused %s changed %+v to %+v", kind, l, next)
		}
		written, err := json.Marshal(next)
		if err != nil || json.Unmarshal(written, &again) != nil || !again.Equal(next) {
			t.Fatalf("%s of %+v leads to %s, which is not %+v: %v", kind, l, written, next, err)
		}
	})
}
