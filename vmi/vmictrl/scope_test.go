// SPDX-License-Identifier: Apache-2.0

package vmictrl_test

import (
	"fmt"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/vmi/vmictrl"
)

func TestScope(t *testing.T) {
	g := &v1.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", UID: "1", Labels: map[string]string{"team": "blue"}}}
	blue, red := labels.SelectorFromSet(labels.Set{"team": "blue"}), labels.SelectorFromSet(labels.Set{"team": "red"})
	for name, tt := range map[string]struct {
		scope vmictrl.Scope
		want  bool
	}{
		"all":             {vmictrl.Scope{}, true},
		"its namespace":   {vmictrl.Scope{Namespaces: []string{"a", "ns"}}, true},
		"other namespace": {vmictrl.Scope{Namespaces: []string{"a"}}, false},
		"its label":       {vmictrl.Scope{Selector: blue}, true},
		"other label":     {vmictrl.Scope{Selector: red}, false},
		"one of both":     {vmictrl.Scope{Namespaces: []string{"ns"}, Selector: red}, false},
		"the only shard":  {vmictrl.Scope{Shards: 1}, true},
	} {
		if got := tt.scope.Has(g); got != tt.want {
			t.Errorf("%s: %v, want %v", name, got, tt.want)
		}
	}
}

// Every VMI belongs to one shard, and no shard is empty.
func TestScope_Shards(t *testing.T) {
	const shards, guests = 3, 300
	has := map[int]int{}
	for i := range guests {
		g := &v1.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{UID: types.UID(fmt.Sprintf("8f2a-%d", i))}}
		for shard := range shards {
			if (vmictrl.Scope{Shard: shard, Shards: shards}).Has(g) {
				has[shard]++
			}
		}
	}
	total := 0
	for shard := range shards {
		total += has[shard]
		if has[shard] < guests/shards/2 {
			t.Errorf("shard %d has %d of %d guests", shard, has[shard], guests)
		}
	}
	if total != guests {
		t.Errorf("%d guests are in %d shards, want each in one", total, guests)
	}
}

func TestScope_Invalid(t *testing.T) {
	for name, scope := range map[string]vmictrl.Scope{
		"behind the last":  {Shard: 2, Shards: 2},
		"before the first": {Shard: -1, Shards: 2},
		"less than none":   {Shards: -1},
		"no name":          {Namespaces: []string{""}},
	} {
		r := &vmictrl.Reconciler{Scope: scope}
		if err := r.SetupWithManager(t.Context(), nil); err == nil || len(err.Error()) < 20 {
			t.Errorf("%s: error %v", name, err)
		}
	}
}
