// SPDX-License-Identifier: Apache-2.0

package evacuation

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/migration"
)

// Defaults of KubeVirt's workloadUpdateStrategy.
const (
	defaultBatchEvictionSize     = 10
	defaultBatchEvictionInterval = time.Minute
)

// minBatchEvictionInterval is the shortest interval between batches, whatever is configured: denied
// evictions are repeated at that rate.
const minBatchEvictionInterval = time.Second

// batch returns how many VMIs are evicted at a time, and the interval between batches.
func batch(kv *v1.KubeVirt) (size int, interval time.Duration) {
	size, interval = defaultBatchEvictionSize, defaultBatchEvictionInterval
	if n := kv.Spec.WorkloadUpdateStrategy.BatchEvictionSize; n != nil {
		size = max(*n, 0)
	}
	if d := kv.Spec.WorkloadUpdateStrategy.BatchEvictionInterval; d != nil {
		interval = max(d.Duration, minBatchEvictionInterval)
	}
	return size, interval
}

// enlistLeaver makes the VMI a candidate for eviction, if evicting it makes sense.
func (u *updating) enlistLeaver(c updatable) *Standing {
	strategy := strategyOf(c.VMI, u.KubeVirt.Spec.Configuration.EvictionStrategy)
	switch pod := migration.CurrentPod(c.VMI, c.Pods, ""); {
	case pod == nil:
		return c.leave(migration.ReasonWaitingForSourcePod, "the Pod in which the VMI runs is unknown")
	case pod.DeletionTimestamp != nil:
		return c.leave(reasonEvictionUnderWay, fmt.Sprintf("Pod %q of the VMI is being deleted", pod.Name))
	case c.VMI.IsMarkedForEviction():
		return c.leave(reasonEvictionUnderWay, "the VMI was requested to leave node "+c.VMI.Status.EvacuationNodeName)
	case strategy != nil && *strategy == v1.EvictionStrategyLiveMigrate && !c.VMI.IsMigratable():
		return c.leave(reasonEvictionRefused, c.need.message+"; the VMI is not live migratable, and its eviction strategy LiveMigrate forbids eviction")
	}
	c.tried = u.Refused[c.VMI.UID]
	u.leavers = append(u.leavers, c)
	return c.leave(reasonEvictionBatch, c.need.message)
}

// evict evicts one batch of VMIs, if its time has come. VMIs whose eviction was denied come last, so
// that they block no others. Those of the batch are looked at again too: nothing may ever report
// that an eviction was denied, or would now be allowed.
func (u *updating) evict() {
	slices.SortFunc(u.leavers, func(a, b updatable) int {
		return cmp.Or(a.tried.Compare(b.tried), a.need.since.Compare(b.need.since), byVMI(a.VMI, b.VMI))
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
			s.Verb, s.Reason, s.Message, s.Pod = EvictPod, reasonUpdating, c.need.message, migration.CurrentPod(c.VMI, c.Pods, "")
			continue
		}
		s.Message = fmt.Sprintf("%s; %d VMIs are evicted every %s", c.need.message, size, interval)
	}
}
