// SPDX-License-Identifier: Apache-2.0

package admit_test

import (
	"encoding/json"
	"maps"
	"slices"
	"testing"

	v1 "kubevirt.io/api/core/v1"
)

// replacements replace any value where the type permits; nil removes it.
var replacements = []any{nil, "", "x y", "1Gi", 0, -1, 4294967295, true, map[string]any{}, []any{}, []any{map[string]any{}, map[string]any{}}}

// vary calls visit with the document once for each value in it and each replacement.
func vary(value any, set func(any), visit func()) {
	for _, r := range replacements {
		set(r)
		visit()
	}
	set(value)
	switch v := value.(type) {
	case map[string]any:
		for _, key := range slices.Sorted(maps.Keys(v)) {
			vary(v[key], func(r any) { v[key] = r }, visit)
		}
	case []any:
		for i := range v {
			vary(v[i], func(r any) { v[i] = r }, visit)
		}
	}
}

// TestVariations_Invariants removes and replaces every value of the VMIs in the corpus.
func TestVariations_Invariants(t *testing.T) {
	read := 0
	for _, s := range corpus(t) {
		c := s.config()
		text, err := json.Marshal(s.cluster.VMI)
		if err != nil {
			t.Fatal(err)
		}
		document := map[string]any{}
		if err := json.Unmarshal(text, &document); err != nil {
			t.Fatal(err)
		}
		for _, part := range []string{"spec", "status"} {
			vary(document[part], func(r any) { document[part] = r }, func() {
				text, err := json.Marshal(document)
				if err != nil {
					t.Fatal(err)
				}
				var vmi v1.VirtualMachineInstance
				if json.Unmarshal(text, &vmi) != nil {
					return // the API server would have rejected it
				}
				read++
				judge(t, &vmi, c)
				if t.Failed() {
					t.Fatalf("%s: %s", s.name, text)
				}
			})
		}
	}
	if read < 5000 {
		t.Errorf("only %d variations could be read", read)
	}
}
