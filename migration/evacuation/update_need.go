// SPDX-License-Identifier: Apache-2.0

package evacuation

import (
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/internal/vmistatus"
	"github.com/virtloom/virtloom/migration/queue"
)

// need is why a VMI's Pod is outdated.
type need struct {
	// outdated: the Pod has another launcher image. unknown: its image is currently unknown.
	outdated, unknown bool
	// change: a change of the VMI waits for a migration. required: it does so now.
	change, required bool
	// volumes: the change moves volumes.
	volumes bool
	// wished is when the VMI's owner last requested a change; zero for none. since is when the first
	// change, of any kind, arose; the VMI's creation for a new image.
	wished, since time.Time
	// message says what is needed.
	message string
}

// change is a condition of a VMI that requires a migration.
type change struct {
	condition v1.VirtualMachineInstanceConditionType
	// anyStatus says that the condition counts with any status, else only if it is True.
	anyStatus bool
	// wish says that it results from a request of the VMI's owner.
	wish bool
	what string
}

var changes = []change{
	{v1.VirtualMachineInstanceVCPUChange, true, true, "the VMI's CPUs change"},
	{v1.VirtualMachineInstanceMemoryChange, false, true, "the guest's memory changes"},
	{v1.VirtualMachineInstanceVolumesChange, false, true, "the VMI's volumes migrate"},
	{v1.VirtualMachineInstanceMigrationRequired, false, false, "the VMI needs another Pod"},
}

// NeedsUpdate reports whether the VMI's Pod has another launcher image than the given one, or a change
// of the VMI waits for a migration. It is the predicate for an index of VMIs.
func NeedsUpdate(vmi *v1.VirtualMachineInstance, launcherImage string) bool {
	n := needOf(vmi, launcherImage)
	return n.outdated || n.change
}

// needOf returns the VMI's need.
func needOf(vmi *v1.VirtualMachineInstance, image string) need {
	have := vmi.Status.LauncherContainerImageVersion
	n := need{outdated: have != "" && have != image, unknown: have == "", since: vmi.CreationTimestamp.Time}
	if n.outdated {
		n.message = fmt.Sprintf("the VMI's Pod has image %s instead of %s", have, image)
	}
	for _, k := range changes {
		if c := vmistatus.Condition(vmi, k.condition); c != nil && (k.anyStatus || c.Status == corev1.ConditionTrue) {
			n.add(k, c.LastTransitionTime.Time)
		}
	}
	n.required = n.change && !onTheWay(vmi) && !updateAborted(vmi)
	return n
}

// add records a change that has waited since a time.
func (n *need) add(k change, since time.Time) {
	if !n.change {
		n.message, n.since = fmt.Sprintf("%s (condition %s)", k.what, k.condition), since
	}
	if since.Before(n.since) {
		n.since = since
	}
	if k.wish && since.After(n.wished) {
		n.wished = since
	}
	n.change = true
	n.volumes = n.volumes || k.condition == v1.VirtualMachineInstanceVolumesChange
}

// updateAborted reports whether tests request that updates of the VMI are canceled.
func updateAborted(vmi *v1.VirtualMachineInstance) bool {
	_, aborted := vmi.Annotations[v1.WorkloadUpdateMigrationAbortionAnnotation]
	return aborted
}

// updates returns the VMI's unfinished migrations that were created for an update.
func updates(g Candidate) []*v1.VirtualMachineInstanceMigration {
	var all []*v1.VirtualMachineInstanceMigration
	for _, m := range g.Migrations {
		if _, ours := m.Annotations[v1.WorkloadUpdateMigrationAnnotation]; ours && !m.IsFinal() {
			all = append(all, m)
		}
	}
	return all
}

// waiting counts the migrations for updates of the VMI that have not started.
func waiting(g Candidate) int {
	n := 0
	for _, m := range updates(g) {
		if !m.IsRunning() {
			n++
		}
	}
	return n
}

// obsolete cancels migrations that are no longer needed, unless the VMI already runs on the target.
func obsolete(g Candidate, n need) *Standing {
	if n.outdated || n.change && !updateAborted(g.VMI) {
		return nil
	}
	s := g.leave(reasonNotAsked, "the reason for the update no longer exists")
	for _, m := range updates(g) {
		if m.DeletionTimestamp == nil && (updateAborted(g.VMI) || mayCallOff(g.VMI, m, n)) {
			s.Verb, s.Cancel = Cancel, append(s.Cancel, m)
		}
	}
	if s.Verb == "" {
		return nil
	}
	return s
}

func mayCallOff(vmi *v1.VirtualMachineInstance, m *v1.VirtualMachineInstanceMigration, n need) bool {
	// A migration of this priority was created for the image, which is currently unknown.
	if n.unknown && queue.PriorityOf(m.Spec.Priority) == queue.PriorityCritical {
		return false
	}
	ms := vmi.Status.MigrationState
	return ms == nil || ms.MigrationUID != m.UID || ms.TargetNodeDomainReadyTimestamp == nil
}

// movesVolumes reports whether the VMI's migration includes all volumes that block it: only its
// node's report about storage is against it otherwise.
func movesVolumes(vmi *v1.VirtualMachineInstance) bool {
	if len(vmi.Status.MigratedVolumes) == 0 {
		return false
	}
	if c := vmistatus.Condition(vmi, v1.VirtualMachineInstanceIsStorageLiveMigratable); c != nil && c.Status == corev1.ConditionFalse {
		return false
	}
	for i := range vmi.Status.VolumeStatus {
		v := &vmi.Status.VolumeStatus[i]
		if v.PersistentVolumeClaimInfo == nil || slices.Contains(v.PersistentVolumeClaimInfo.AccessModes, corev1.ReadWriteMany) {
			continue
		}
		moved := func(m v1.StorageMigratedVolumeInfo) bool { return m.VolumeName == v.Name }
		if !slices.ContainsFunc(vmi.Status.MigratedVolumes, moved) {
			return false
		}
	}
	return true
}
