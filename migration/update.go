// SPDX-License-Identifier: Apache-2.0

package migration

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"
	v1 "kubevirt.io/api/core/v1"
)

// Reasons why a guest whose Pod is outdated is left as it is, besides those of other automatic
// migrations.
const (
	// ReasonNotDeployed: KubeVirt is being installed or updated.
	ReasonNotDeployed Reason = "KubeVirtNotDeployed"
	// ReasonNoUpdateMethod: KubeVirt's workloadUpdateStrategy has no method that fits the guest.
	ReasonNoUpdateMethod Reason = "NoWorkloadUpdateMethod"
	// ReasonUpdateLimit: as many guests are migrated as may be at a time.
	ReasonUpdateLimit Reason = "WorkloadUpdateLimit"
	// ReasonEvictionBatch: the next guests are evicted later.
	ReasonEvictionBatch Reason = "WaitingForEvictionBatch"
	// ReasonEvictionRefused: the guest's own eviction strategy refuses eviction.
	ReasonEvictionRefused Reason = "EvictionRefusedByStrategy"
)

// Workloads is what [UpdateWorkloads] has to know.
type Workloads struct {
	// KubeVirt is the cluster's KubeVirt object; without one nothing is updated.
	KubeVirt *v1.KubeVirt
	// LauncherImage is the image that the Pods of guests are to have.
	LauncherImage string
	// Guests are those for which [NeedsUpdate] says so, and those with an unfinished migration that was
	// made for an update.
	Guests []Guest
	// Running is how many migrations of the cluster have started and not finished, whoever made them.
	Running int
	// LastBatch is when guests were last evicted for an update; the start of the process at first, so
	// that one that is restarted often does not evict more often.
	LastBatch time.Time
	// Refused is when the eviction of a guest's Pod was last refused, by the UID of the guest. Those go
	// last.
	Refused map[types.UID]time.Time
	// Fleet is what [Fleet] says of the cluster.
	Fleet string
	// Config is the configuration, with defaults filled in.
	Config Config
}

// Updates is the outcome of [UpdateWorkloads].
type Updates struct {
	// Standings has one for each of the guests.
	Standings []Standing
	// Outdated is how many guests' Pods are not as they should be: it is to be
	// status.outdatedVirtualMachineInstanceWorkloads of the KubeVirt object, if Known.
	Outdated int
	// Known says that Outdated counts; it does not while KubeVirt is not deployed.
	Known bool
}

// UpdateWorkloads tells for each of the guests whether a migration is to be created, or its Pod
// evicted, so that it runs in a Pod as guest and cluster ask for it now; whether migrations that were
// created for that are to be called off, as what asked for them is gone; or why nothing is done. It is
// pure.
//
// A new launcher image concerns all guests: of migrations for that there are never more than may run at
// a time, so that the queue stays short for others. What the owner of a guest asks for is created at
// once, and waits in the queue.
func UpdateWorkloads(w Workloads, now time.Time) Updates {
	if s := w.undeployed(); s != "" {
		out := Updates{}
		for _, g := range w.Guests {
			out.Standings = append(out.Standings, *g.leave(ReasonNotDeployed, s))
		}
		return out
	}
	u := &updating{Workloads: w, now: now, out: Updates{Known: true, Standings: make([]Standing, len(w.Guests))}}
	u.target = sum(w.LauncherImage, text(w.KubeVirt.Spec.Configuration))
	for i, g := range w.Guests {
		u.out.Standings[i] = *u.judge(g, i)
	}
	u.migrate()
	u.evict()
	return u.out
}

// undeployed says why nothing is updated now; empty if it may be. Where nobody deploys KubeVirt, its
// status says nothing.
func (w Workloads) undeployed() string {
	kv := w.KubeVirt
	if kv == nil {
		return "there is no KubeVirt object"
	}
	unmanaged := kv.Status.Phase == "" && kv.Status.ObservedDeploymentID == "" && kv.Status.TargetDeploymentID == ""
	switch {
	case unmanaged:
		return ""
	case kv.Status.Phase != v1.KubeVirtPhaseDeployed:
		return fmt.Sprintf("KubeVirt is in phase %q, guests are updated when it is Deployed", kv.Status.Phase)
	case kv.Status.ObservedDeploymentID != kv.Status.TargetDeploymentID:
		return "another version of KubeVirt is being deployed"
	}
	return ""
}

// updating is one run of UpdateWorkloads.
type updating struct {
	Workloads
	now time.Time
	out Updates
	// target sums up what updates are to bring about, but for the guest's part.
	target string
	// movers and leavers are the guests that may be migrated, and evicted; waiting is how many
	// migrations for updates have not started.
	movers, leavers []candidate
	waiting         int
}

// candidate is a guest that may be updated.
type candidate struct {
	Guest
	need need
	// place is that of the guest's standing, tried when its update was last tried in vain.
	place int
	tried time.Time
}

// judge answers for a guest as far as that does not depend on others. Guests that may be updated become
// candidates.
func (u *updating) judge(g Guest, place int) *Standing {
	if s := g.ended(); s != nil {
		return s
	}
	if !g.VMI.IsRunning() {
		return g.leave(ReasonNotRunning, fmt.Sprintf("the guest is in phase %q", g.VMI.Status.Phase))
	}
	n := needOf(g.VMI, u.LauncherImage)
	if s := g.unsettled(); s != nil {
		u.waiting += max(waiting(g), 1) // what is not seen yet may be its migration
		if n.outdated || n.required {
			u.out.Outdated++
		}
		return s
	}
	if s := obsolete(g, n); s != nil {
		return s
	}
	u.waiting += waiting(g)
	if !n.outdated && !n.required {
		return g.leave(ReasonNotAsked, "the guest's Pod is as it should be")
	}
	u.out.Outdated++
	if s := first(g.busy, g.crowded, func() *Standing { return g.behind(u.now) }); s != nil {
		return s
	}
	return u.enlist(candidate{Guest: g, need: n, place: place})
}

// enlist finds the method for a guest.
func (u *updating) enlist(c candidate) *Standing {
	all := u.KubeVirt.Spec.WorkloadUpdateStrategy.WorkloadUpdateMethods
	migrates, evicts := slices.Contains(all, v1.WorkloadUpdateMethodLiveMigrate), slices.Contains(all, v1.WorkloadUpdateMethodEvict)
	switch movable := c.VMI.IsMigratable() || movesVolumes(c.VMI); {
	case migrates && movable:
		if s := first(
			func() *Standing { return c.cooling(u.Config, c.need.wished, u.now) },
			func() *Standing { return c.hopeless(u.Fleet, u.now) },
			func() *Standing { return u.vain(c) },
		); s != nil {
			return s
		}
		if last := c.newest((*v1.VirtualMachineInstanceMigration).IsFinal); last != nil && !succeeded(last) {
			c.tried = endOf(last)
		}
		u.movers = append(u.movers, c)
	case evicts:
		return u.enlistLeaver(c)
	default:
		return c.leave(ReasonNoUpdateMethod, c.need.message+"; "+inapplicable(migrates, movable))
	}
	return c.leave(ReasonUpdateLimit, c.need.message)
}

func inapplicable(migrates, movable bool) string {
	switch {
	case migrates && !movable:
		return "the guest cannot be migrated, and method Evict is not among KubeVirt's workloadUpdateMethods"
	case movable:
		return "method LiveMigrate is not among KubeVirt's workloadUpdateMethods"
	}
	return "none of KubeVirt's workloadUpdateMethods fits the guest"
}

// migrate has migrations created: for what owners ask at once, for the launcher image as far as the
// limit allows.
func (u *updating) migrate() {
	slices.SortFunc(u.movers, func(a, b candidate) int {
		return cmp.Or(rankOf(a.need)-rankOf(b.need), a.tried.Compare(b.tried),
			a.need.since.Compare(b.need.since), byGuest(a.VMI, b.VMI))
	})
	limit := u.Config.Limits.Cluster
	free := limit - u.Running - u.waiting
	for _, c := range u.movers {
		s := &u.out.Standings[c.place]
		if !c.need.required && free <= 0 {
			s.Reason = ReasonUpdateLimit
			s.Message = fmt.Sprintf("%s; of migrations for that there are no more than may run at a time, %d (%s)", c.need.message, limit, LimitCluster)
			continue
		}
		free--
		s.Verb, s.Reason, s.Message, s.Migration = Create, ReasonUpdating, c.need.message, u.updateOf(c)
	}
}

// updateOf is the migration that updates the guest.
func (u *updating) updateOf(c candidate) *v1.VirtualMachineInstanceMigration {
	p := v1.PrioritySystemCritical
	if c.need.required {
		p = v1.PriorityUserTriggered
	}
	m := c.automatic(u.Fleet, p, v1.WorkloadUpdateMigrationAnnotation, "")
	m.Annotations[UpdateAnnotation] = u.intent(c.VMI)
	if c.need.volumes {
		name := c.VMI.Name
		if len(name) > maxLabelValue {
			name = string(c.VMI.UID)
		}
		m.Labels = map[string]string{v1.VolumesUpdateMigration: name}
	}
	return m
}

// rankOf puts what owners ask for before a new image.
func rankOf(n need) int {
	if n.required {
		return 0
	}
	return 1
}
