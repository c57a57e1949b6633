// SPDX-License-Identifier: Apache-2.0

package migration

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	v1 "kubevirt.io/api/core/v1"
)

// Defaults of KubeVirt's workloadUpdateStrategy.
const (
	DefaultBatchEvictionSize     = 10
	DefaultBatchEvictionInterval = time.Minute
)

// minBatchEvictionInterval is the shortest time from one batch to the next, whatever is configured:
// refused evictions are repeated at that pace for as long as they are refused.
const minBatchEvictionInterval = time.Second

// batch returns how many guests are evicted at a time, and how long it is from one time to the next.
func batch(kv *v1.KubeVirt) (size int, interval time.Duration) {
	size, interval = DefaultBatchEvictionSize, DefaultBatchEvictionInterval
	if n := kv.Spec.WorkloadUpdateStrategy.BatchEvictionSize; n != nil {
		size = max(*n, 0)
	}
	if d := kv.Spec.WorkloadUpdateStrategy.BatchEvictionInterval; d != nil {
		interval = max(d.Duration, minBatchEvictionInterval)
	}
	return size, interval
}

// enlistLeaver makes a candidate for eviction of a guest, if evicting it has a point.
func (u *updating) enlistLeaver(c candidate) *Standing {
	strategy := StrategyOf(c.VMI, u.KubeVirt.Spec.Configuration.EvictionStrategy)
	switch pod := CurrentPod(c.VMI, c.Pods, ""); {
	case pod == nil:
		return c.leave(ReasonWaitingForSourcePod, "the Pod in which the guest runs is not known")
	case pod.DeletionTimestamp != nil:
		return c.leave(ReasonEvictionUnderWay, fmt.Sprintf("Pod %q of the guest is being deleted", pod.Name))
	case c.VMI.IsMarkedForEviction():
		return c.leave(ReasonEvictionUnderWay, "the guest was asked to leave node "+c.VMI.Status.EvacuationNodeName)
	case strategy != nil && *strategy == v1.EvictionStrategyLiveMigrate && !c.VMI.IsMigratable():
		return c.leave(ReasonEvictionRefused, c.need.message+"; the guest cannot be migrated, and its eviction strategy LiveMigrate does not let it end")
	}
	c.tried = u.Refused[c.VMI.UID]
	u.leavers = append(u.leavers, c)
	return c.leave(ReasonEvictionBatch, c.need.message)
}

// evict has one batch of guests evicted, if it is time for one. Those whose eviction was refused go
// last, so that they hold up nobody. Those of the batch are looked at again too: nothing may ever tell
// that an eviction was refused, or would not be any more.
func (u *updating) evict() {
	slices.SortFunc(u.leavers, func(a, b candidate) int {
		return cmp.Or(a.tried.Compare(b.tried), a.need.since.Compare(b.need.since), byGuest(a.VMI, b.VMI))
	})
	size, interval := batch(u.KubeVirt)
	next := u.LastBatch.Add(interval)
	left := size
	if u.now.Before(next) {
		left = 0
	} else {
		next = u.now.Add(interval)
	}
	for _, c := range u.leavers {
		s := &u.out.Standings[c.place]
		if size > 0 {
			s.At = next
		}
		if left > 0 {
			left--
			s.Verb, s.Reason, s.Message, s.Pod = EvictPod, ReasonUpdating, c.need.message, CurrentPod(c.VMI, c.Pods, "")
			continue
		}
		s.Message = fmt.Sprintf("%s; %d guests are evicted every %s", c.need.message, size, interval)
	}
}
