// SPDX-License-Identifier: Apache-2.0

package migration

import (
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	v1 "kubevirt.io/api/core/v1"
)

// need is why a guest's Pod is not as it should be.
type need struct {
	// outdated: the Pod has another launcher image. unknown: its image is not known now.
	outdated, unknown bool
	// change: a change of the guest waits for a migration. required: it does so now.
	change, required bool
	// volumes: the change moves volumes.
	volumes bool
	// wished is when the owner of the guest last wished a change; zero for none. since is when the first
	// change, of whatever kind, came up; the guest's creation for a new image.
	wished, since time.Time
	// message says what is needed.
	message string
}

// change is a condition of a guest that asks for a migration.
type change struct {
	condition v1.VirtualMachineInstanceConditionType
	// anyStatus says that the condition asks whatever its status, else if it is True.
	anyStatus bool
	// wish says that it is there because the guest's owner wants something.
	wish bool
	what string
}

var changes = []change{
	{v1.VirtualMachineInstanceVCPUChange, true, true, "the guest's CPUs change"},
	{v1.VirtualMachineInstanceMemoryChange, false, true, "the guest's memory changes"},
	{v1.VirtualMachineInstanceVolumesChange, false, true, "the guest's volumes move"},
	{v1.VirtualMachineInstanceMigrationRequired, false, false, "the guest needs another Pod"},
}

// NeedsUpdate reports whether the guest's Pod has another launcher image than the one given, or a change
// of the guest waits for a migration. It is the question for an index of guests.
func NeedsUpdate(vmi *v1.VirtualMachineInstance, launcherImage string) bool {
	n := needOf(vmi, launcherImage)
	return n.outdated || n.change
}

// needOf reads it from the guest.
func needOf(vmi *v1.VirtualMachineInstance, image string) need {
	have := vmi.Status.LauncherContainerImageVersion
	n := need{outdated: have != "" && have != image, unknown: have == "", since: vmi.CreationTimestamp.Time}
	if n.outdated {
		n.message = fmt.Sprintf("the guest's Pod has image %s instead of %s", have, image)
	}
	for _, k := range changes {
		if c := conditionOf(vmi, k.condition); c != nil && (k.anyStatus || c.Status == corev1.ConditionTrue) {
			n.add(k, c.LastTransitionTime.Time)
		}
	}
	n.required = n.change && !onTheWay(vmi) && !updateAborted(vmi)
	return n
}

// add notes a change that has waited since a time.
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

// updateAborted reports whether tests want updates of the guest to be called off.
func updateAborted(vmi *v1.VirtualMachineInstance) bool {
	_, aborted := vmi.Annotations[v1.WorkloadUpdateMigrationAbortionAnnotation]
	return aborted
}

// updates are the guest's unfinished migrations that were made for an update.
func updates(g Guest) []*v1.VirtualMachineInstanceMigration {
	var all []*v1.VirtualMachineInstanceMigration
	for _, m := range g.Migrations {
		if _, ours := m.Annotations[v1.WorkloadUpdateMigrationAnnotation]; ours && !m.IsFinal() {
			all = append(all, m)
		}
	}
	return all
}

// waiting counts the migrations for updates of the guest that have not started.
func waiting(g Guest) int {
	n := 0
	for _, m := range updates(g) {
		if !m.IsRunning() {
			n++
		}
	}
	return n
}

// obsolete calls off migrations for which there is no need any more, unless the guest runs on the
// target already.
func obsolete(g Guest, n need) *Standing {
	if n.outdated || n.change && !updateAborted(g.VMI) {
		return nil
	}
	s := g.leave(ReasonNotAsked, "what the migration was to bring about is not asked for any more")
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
	// A migration of this priority was made for the image, of which nothing is known right now.
	if n.unknown && PriorityOf(m.Spec.Priority) == PriorityCritical {
		return false
	}
	ms := vmi.Status.MigrationState
	return ms == nil || ms.MigrationUID != m.UID || ms.TargetNodeDomainReadyTimestamp == nil
}

// movesVolumes reports whether the guest's migration takes along all volumes that it would lose: only
// its node's word on storage is against it otherwise.
func movesVolumes(vmi *v1.VirtualMachineInstance) bool {
	if len(vmi.Status.MigratedVolumes) == 0 {
		return false
	}
	if c := conditionOf(vmi, v1.VirtualMachineInstanceIsStorageLiveMigratable); c != nil && c.Status == corev1.ConditionFalse {
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
