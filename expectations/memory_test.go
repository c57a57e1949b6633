// SPDX-License-Identifier: Apache-2.0

package expectations_test

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/virtloom/virtloom/expectations"
)

// heap returns the bytes in use after garbage collection.
func heap() int64 {
	for range 3 { // what a sync.Pool holds goes with the second
		runtime.GC()
	}
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// A million owners, or a tenth of that under the race detector, wait, many at a time, and end in different ways. They
// must leave no memory behind.
func TestTracker_MemoryReleased(t *testing.T) {
	const waves, allowed = 10, 1 << 18
	now := time.Unix(1000, 0)
	tracker, err := expectations.New(expectations.Options{Now: func() time.Time { return now }})
	if err != nil {
		t.Fatal(err)
	}
	before := heap()
	for wave := range waves {
		o := func(i int) expectations.Owner {
			name := fmt.Sprintf("vm-%d-%d", wave, i)
			return expectations.Owner{Key: types.NamespacedName{Namespace: "ns", Name: name}, UID: types.UID(name)}
		}
		for i := range crowd {
			r := ref
			r.Name = o(i).Key.Name
			tracker.ExpectUpdate(o(i), r, "4", "5")
		}
		if got := tracker.Outstanding(); got != crowd {
			t.Fatalf("%d writes outstanding, want %d", got, crowd)
		}
		if wave == 0 {
			if peak := heap() - before; peak < 100*crowd {
				t.Fatalf("%d bytes for %d writes: they are not in memory", peak, crowd)
			}
			tracker.ObserveBookmark(pods, "ns", "5")
		}
		for i := range crowd {
			switch i % 3 {
			case 0:
				tracker.ForgetKey(o(i).Key)
			case 1:
				tracker.Forget(o(i))
			default:
				obj := object("u1", "5")
				obj.Name = o(i).Key.Name
				tracker.Observe(pods, obj, expectations.Updated)
			}
		}
	}
	if got := tracker.Outstanding(); got != 0 {
		t.Errorf("%d writes outstanding, want none", got)
	}
	if got := heap() - before; got > allowed {
		t.Errorf("%d bytes stay of %d owners, want at most %d", got, waves*crowd, allowed)
	}
	runtime.KeepAlive(tracker)
}
