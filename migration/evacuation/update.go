// SPDX-License-Identifier: Apache-2.0

package evacuation

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/migration"
	"github.com/virtloom/virtloom/migration/queue"
)

// Reasons why a VMI with an outdated Pod is left as it is, besides those of other automatic
// migrations.
const (
	// reasonNotDeployed: KubeVirt is being installed or updated.
	reasonNotDeployed migration.Reason = "KubeVirtNotDeployed"
	// reasonNoUpdateMethod: KubeVirt's workloadUpdateStrategy has no method that fits the VMI.
	reasonNoUpdateMethod migration.Reason = "NoWorkloadUpdateMethod"
	// reasonUpdateLimit: the limit of parallel migrations for updates is reached.
	reasonUpdateLimit migration.Reason = "WorkloadUpdateLimit"
	// reasonEvictionBatch: the VMI waits for the next eviction batch.
	reasonEvictionBatch migration.Reason = "WaitingForEvictionBatch"
	// reasonEvictionRefused: the VMI's own eviction strategy forbids eviction.
	reasonEvictionRefused migration.Reason = "EvictionRefusedByStrategy"
)

// Workloads is the input of [UpdateWorkloads].
type Workloads struct {
	// KubeVirt is the cluster's KubeVirt object; without one nothing is updated.
	KubeVirt *v1.KubeVirt
	// LauncherImage is the image that the VMIs' Pods should have.
	LauncherImage string
	// Guests are the VMIs that satisfy [NeedsUpdate], and those with an unfinished migration that was
	// created for an update.
	VMIs []Candidate
	// Running is how many migrations of the cluster have started and not finished, whoever created them.
	Running int
	// LastBatch is when VMIs were last evicted for an update; the start of the process at first, so
	// that a process that restarts often does not evict more often.
	LastBatch time.Time
	// Refused is when the eviction of a VMI's Pod was last denied, by the UID of the VMI. These VMIs
	// come last.
	Refused map[types.UID]time.Time
	// Fleet is the result of [Fleet] for the cluster.
	Fleet string
	// Config is the configuration, with defaults filled in.
	Config migration.Config
}

// Updates is the result of [UpdateWorkloads].
type Updates struct {
	// Standings has one for each of the VMIs.
	Standings []Standing
	// Outdated is the number of VMIs with outdated Pods, the value for
	// status.outdatedVirtualMachineInstanceWorkloads of the KubeVirt object if Known.
	Outdated int
	// Known says that Outdated is valid; it is not while KubeVirt is not deployed.
	Known bool
}

// UpdateWorkloads decides for each of the VMIs whether to create a migration, or evict its Pod, so
// that it runs in a Pod as VMI and cluster now require; whether to cancel migrations that were
// created for that and are obsolete; or why nothing is done. It is pure.
//
// A new launcher image concerns all VMIs: migrations for it are created only up to the number that may
// run in parallel, so that the queue stays short for others. What the owner of a VMI requests (CPUs,
// memory, volumes, networks) is created at once, and waits in the queue.
//
// Differences from KubeVirt:
//
//   - The limit holds for new launcher images alone, and counts waiting migrations for updates.
//     KubeVirt applies it to owners' requests too, but counts no waiting ones.
//   - The order is defined: owners' requests first, then VMIs whose last attempt has not failed, then
//     those that waited longest; for evictions, VMIs whose eviction was not denied, then those that
//     waited longest.
//   - A VMI that was updated, and whose Pod still does not have the required image, is not updated
//     again for the same image, configuration and spec (updateAnnotation).
//   - An update is also canceled if an earlier migration of the VMI has reached its target.
//   - The first VMIs are evicted one interval after the start, not at once; one without a Pod, or
//     whose strategy forbids eviction, takes no place in a batch.
//   - If KubeVirt is not deployed, so that its object has no status, VMIs are updated.
func UpdateWorkloads(w Workloads, now time.Time) Updates {
	if s := w.undeployed(); s != "" {
		out := Updates{}
		for _, g := range w.VMIs {
			out.Standings = append(out.Standings, *g.leave(reasonNotDeployed, s))
		}
		return out
	}
	u := &updating{Workloads: w, now: now, out: Updates{Known: true, Standings: make([]Standing, len(w.VMIs))}}
	u.target = hashTexts(w.LauncherImage, jsonText(w.KubeVirt.Spec.Configuration))
	for i, g := range w.VMIs {
		u.out.Standings[i] = *u.judge(g, i)
	}
	u.migrate()
	u.evict()
	return u.out
}

// undeployed returns why nothing is updated now; empty if updates are possible. If KubeVirt is not
// deployed, its status is empty.
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
		return fmt.Sprintf("KubeVirt is in phase %q; VMIs are updated in phase Deployed", kv.Status.Phase)
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
	// target hashes what updates are to bring about, except for the VMI's part.
	target string
	// movers and leavers are the VMIs that may be migrated, and evicted; waiting is how many
	// migrations for updates have not started.
	movers, leavers []updatable
	waiting         int
}

// updatable is a VMI that may be updated.
type updatable struct {
	Candidate
	need need
	// place is that of the VMI's standing, tried when its update was last tried in vain.
	place int
	tried time.Time
}

// judge decides about a VMI as far as that is independent of others. VMIs that may be updated become
// candidates.
func (u *updating) judge(g Candidate, place int) *Standing {
	if s := g.ended(); s != nil {
		return s
	}
	if !g.VMI.IsRunning() {
		return g.leave(ReasonNotRunning, fmt.Sprintf("the VMI is in phase %q", g.VMI.Status.Phase))
	}
	n := needOf(g.VMI, u.LauncherImage)
	if s := g.unsettled(); s != nil {
		u.waiting += max(waiting(g), 1) // the write not observed yet may be its migration
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
		return g.leave(reasonNotAsked, "the VMI's Pod is up to date")
	}
	u.out.Outdated++
	if s := firstStanding(g.busy, g.crowded, func() *Standing { return g.behind(u.now) }); s != nil {
		return s
	}
	return u.enlist(updatable{Candidate: g, need: n, place: place})
}

// enlist selects the update method for a VMI.
func (u *updating) enlist(c updatable) *Standing {
	all := u.KubeVirt.Spec.WorkloadUpdateStrategy.WorkloadUpdateMethods
	migrates, evicts := slices.Contains(all, v1.WorkloadUpdateMethodLiveMigrate), slices.Contains(all, v1.WorkloadUpdateMethodEvict)
	switch movable := c.VMI.IsMigratable() || movesVolumes(c.VMI); {
	case migrates && movable:
		if s := firstStanding(
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
		return c.leave(reasonNoUpdateMethod, c.need.message+"; "+inapplicable(migrates, movable))
	}
	return c.leave(reasonUpdateLimit, c.need.message)
}

func inapplicable(migrates, movable bool) string {
	switch {
	case migrates && !movable:
		return "the VMI is not live migratable, and Evict is not among KubeVirt's workloadUpdateMethods"
	case movable:
		return "LiveMigrate is not among KubeVirt's workloadUpdateMethods"
	}
	return "none of KubeVirt's workloadUpdateMethods fits the VMI"
}

// migrate creates migrations: for owners' requests at once, for the launcher image within the limit.
func (u *updating) migrate() {
	slices.SortFunc(u.movers, func(a, b updatable) int {
		return cmp.Or(rankOf(a.need)-rankOf(b.need), a.tried.Compare(b.tried),
			a.need.since.Compare(b.need.since), byVMI(a.VMI, b.VMI))
	})
	limit := u.Config.Limits.Cluster
	free := limit - u.Running - u.waiting
	for _, c := range u.movers {
		s := &u.out.Standings[c.place]
		if !c.need.required && free <= 0 {
			s.Reason = reasonUpdateLimit
			s.Message = fmt.Sprintf("%s; at most %d migrations for updates at a time (%s)", c.need.message, limit, queue.LimitCluster)
			continue
		}
		free--
		s.Verb, s.Reason, s.Message, s.Migration = Create, reasonUpdating, c.need.message, u.updateOf(c)
	}
}

// updateOf returns the migration that updates the VMI.
func (u *updating) updateOf(c updatable) *v1.VirtualMachineInstanceMigration {
	p := v1.PrioritySystemCritical
	if c.need.required {
		p = v1.PriorityUserTriggered
	}
	m := c.automatic(u.Fleet, p, v1.WorkloadUpdateMigrationAnnotation, "")
	m.Annotations[updateAnnotation] = u.intent(c.VMI)
	if c.need.volumes {
		name := c.VMI.Name
		if len(name) > validation.LabelValueMaxLength {
			name = string(c.VMI.UID)
		}
		m.Labels = map[string]string{v1.VolumesUpdateMigration: name}
	}
	return m
}

// rankOf puts owners' requests before a new image.
func rankOf(n need) int {
	if n.required {
		return 0
	}
	return 1
}
