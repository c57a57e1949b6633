// SPDX-License-Identifier: Apache-2.0

package expectations_test

import (
	"testing"

	"github.com/virtloom/virtloom/expectations"
)

// AllocsPerRun rounds down, which forgives that the race detector makes pools forget some of what they hold.
func TestAllocations(t *testing.T) {
	b := newBench(t)
	obj := object("u1", "5")
	for name, tc := range map[string]struct {
		do   func()
		most float64
	}{
		"cycle of a creation": {func() {
			b.ExpectCreate(owner, ref)
			b.Observe(pods, obj, expectations.Added)
			b.Check(owner)
			b.woken = b.woken[:0]
		}, 1},
		"cycle of an answered update": {func() {
			tok := b.ExpectUpdate(owner, ref, "4", "")
			b.Confirm(tok, obj)
			b.Observe(pods, obj, expectations.Updated)
			b.Check(owner)
			b.woken = b.woken[:0]
		}, 1},
		"cycle of a deletion": {func() {
			b.ExpectDelete(owner, ref, "u1", "4")
			b.Observe(pods, obj, expectations.Deleted)
			b.Check(owner)
			b.woken = b.woken[:0]
		}, 1},
		"cycle of a write that its reply settles": {func() {
			b.Confirm(b.ExpectUpdate(owner, ref, "5", ""), obj)
		}, 1},
		"cycle of a write that a live read settles": {func() {
			b.ExpectDelete(owner, ref, "u1", "4")
			b.Answer(b.Check(owner).Pending[0], nil)
		}, 3},
		"check of a satisfied owner":         {func() { b.Check(owner) }, 0},
		"event that nobody waits for":        {func() { b.Observe(pods, obj, expectations.Updated) }, 0},
		"bookmark with nothing to settle":    {func() { b.ObserveBookmark(pods, "", "9") }, 0},
		"removal of an owner without writes": {func() { b.ForgetKey(owner.Key) }, 0},
	} {
		if got := testing.AllocsPerRun(100, tc.do); got > tc.most {
			t.Errorf("%s: %v allocations, want at most %v", name, got, tc.most)
		}
	}
}
