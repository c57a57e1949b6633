// SPDX-License-Identifier: Apache-2.0

package vmi

import (
	"errors"
	"fmt"
	"math"
	"sync"
	"testing"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	v1 "kubevirt.io/api/core/v1"
)

func named(name string) types.NamespacedName {
	return types.NamespacedName{Namespace: "ns", Name: name}
}

// stored returns a VMI with a CID.
func stored(name string, cid uint32) v1.VirtualMachineInstance {
	g := runs(func(g *v1.VirtualMachineInstance) { g.Name, g.Status.VSOCKCID = name, ptr.To(cid) })
	return *g
}

// allocate returns a CID, or fails the test.
func allocate(t *testing.T, c *CIDs, name string) uint32 {
	t.Helper()
	cid, err := c.Allocate(named(name))
	if err != nil {
		t.Fatal(err)
	}
	return cid
}

func TestCIDs_RandomStart(t *testing.T) {
	for name, tt := range map[string]struct {
		random uint32
		taken  []uint32
		want   uint32
	}{
		"50 the lowest number":          {random: 0, want: 3},
		"50 some number":                {random: 1000, want: 1003},
		"50 the highest number":         {random: math.MaxUint32 - 4, want: math.MaxUint32 - 1},
		"50 beyond the highest number":  {random: math.MaxUint32 - 3, want: 3},
		"50 any number":                 {random: math.MaxUint32, want: 6},
		"50 taken ones are passed over": {random: 0, taken: []uint32{3, 4, 6}, want: 5},
		"50 the search wraps":           {random: math.MaxUint32 - 4, taken: []uint32{math.MaxUint32 - 1, 3}, want: 4},
	} {
		t.Run(name, func(t *testing.T) {
			c := NewCIDs(func() uint32 { return tt.random })
			var all []v1.VirtualMachineInstance
			for i, cid := range tt.taken {
				all = append(all, stored(fmt.Sprint("taken", i), cid))
			}
			c.Sync(all)
			if got := allocate(t, c, "guest"); got != tt.want {
				t.Errorf("got %d, want %d", got, tt.want)
			}
		})
	}
}

// few returns an allocator of four CIDs.
func few() *CIDs {
	c := NewCIDs(func() uint32 { return 0 })
	c.last = c.first + 3
	return c
}

func TestCIDs_AllocateTwice(t *testing.T) {
	c := few()
	first := allocate(t, c, "a")
	if other := allocate(t, c, "b"); other == first {
		t.Errorf("two guests have CID %d", first)
	}
	if again := allocate(t, c, "a"); again != first {
		t.Errorf("CID %d became %d", first, again)
	}
	c.Release(named("a"))
	c.Release(named("a"))
	c.Release(named("never there"))
	if next := allocate(t, c, "c"); next != first {
		t.Errorf("got %d, and %d was given back", next, first)
	}
}

func TestCIDs_SyncOverridesAllocate(t *testing.T) {
	c := few()
	allocate(t, c, "a") // 3
	c.Sync([]v1.VirtualMachineInstance{stored("a", 5), {}})
	if got := allocate(t, c, "a"); got != 5 {
		t.Errorf("got %d, 5 is stored", got)
	}
	if got := allocate(t, c, "b"); got != 3 {
		t.Errorf("got %d, 3 is free", got)
	}
	c.Sync(nil)
	if got := allocate(t, c, "a"); got != 5 {
		t.Errorf("got %d, a second Sync made it forget 5", got)
	}
}

func TestCIDs_ReleaseShared(t *testing.T) {
	c := few()
	c.Sync([]v1.VirtualMachineInstance{stored("a", 3), stored("copy", 3)})
	c.Release(named("copy"))
	if got := allocate(t, c, "b"); got == 3 {
		t.Error("CID 3 is still that of a")
	}
	c.Release(named("a"))
	if got := allocate(t, c, "c"); got != 3 {
		t.Errorf("got %d, 3 is free", got)
	}
}

func TestCIDs_Exhausted(t *testing.T) {
	c := few()
	for _, name := range []string{"a", "b", "c", "d"} {
		allocate(t, c, name)
	}
	if cid, err := c.Allocate(named("e")); !errors.Is(err, ErrNoCID) {
		t.Fatalf("got %d, %v, want ErrNoCID", cid, err)
	}
	c.Release(named("b"))
	allocate(t, c, "e")
}

func TestCIDs_Concurrency(t *testing.T) {
	const guests, workers = 50, 4
	c := NewCIDs(nil)
	got := make([][guests]uint32, workers)
	var all sync.WaitGroup
	for w := range workers {
		all.Go(func() {
			for i := range guests {
				// Each VMI is requested by every worker.
				cid, err := c.Allocate(named(fmt.Sprint(i)))
				if err != nil {
					t.Error(err)
				}
				got[w][i] = cid
				c.Sync([]v1.VirtualMachineInstance{stored(fmt.Sprint(i), cid)})
			}
		})
	}
	all.Wait()
	seen := map[uint32]bool{}
	for i, cid := range got[0] {
		if cid < 3 || cid == math.MaxUint32 || seen[cid] {
			t.Errorf("guest %d has CID %d, which is reserved or another's", i, cid)
		}
		seen[cid] = true
		for w := range workers {
			if got[w][i] != cid {
				t.Errorf("guest %d has CIDs %d and %d", i, cid, got[w][i])
			}
		}
	}
}
