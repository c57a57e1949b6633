// SPDX-License-Identifier: Apache-2.0

package domain

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	v1 "kubevirt.io/api/core/v1"
	"libvirt.org/go/libvirtxml"

	"github.com/virtloom/virtloom/internal/vmistatus"
)

// Observation is what a node has seen of a guest that runs there. Parts that are
// not known leave what the status says about them as it is.
type Observation struct {
	// Node is the name of the node.
	Node string
	// State is the domain, with its live XML; nil if there is none, and nothing is
	// then reflected but the phases of volumes.
	State *State
	// Guest is what the guest's agent said last; nil if that is not known.
	Guest *GuestInfo
	// Facts are those of the node; without Dir nothing is said of migration.
	Facts Facts
	// Credentials is how far access credentials have reached the guest; nil if that
	// is not known.
	Credentials *CredentialSync
	// Troubles are the last tasks for the guest that failed.
	Troubles []Trouble
}

// live is the domain's XML; nil if it is not known.
func (o Observation) live() *libvirtxml.Domain {
	if o.State == nil {
		return nil
	}
	return o.State.Domain
}

// told is what the guest's agent tells of the guest; nil if that is not known. While
// the file systems are frozen it tells nothing but that, and has no commands enabled.
func (o Observation) told() *GuestInfo {
	if o.Guest == nil || o.Guest.Frozen {
		return nil
	}
	return o.Guest
}

// Reflect returns a copy of the object whose status says what was seen of the
// guest. Only fields that the node owns change: the phase while the guest lives,
// interfaces, volumeStatus, guestOSInfo, fsFreezeStatus, memory.guestCurrent and
// guestRequested, machine, currentCPUTopology, selinuxContext, migrationMethod and
// the conditions of the node. The same observation again changes nothing, and
// nothing is said of a guest whose phase is final.
func Reflect(vmi *v1.VirtualMachineInstance, o Observation, now time.Time) *v1.VirtualMachineInstance {
	if vmi == nil {
		return nil
	}
	out := vmi.DeepCopy()
	mirror(out, o, now)
	return out
}

// mirror is [Reflect] for an object of the caller's own.
func mirror(vmi *v1.VirtualMachineInstance, o Observation, now time.Time) {
	if vmi.IsFinal() || o.State == nil {
		return
	}
	if p := Phase(vmi, o.State); p != vmi.Status.Phase && p != v1.Succeeded && p != v1.Failed {
		vmistatus.SetPhase(vmi, p, now)
	}
	troubleStatus(vmi, o.Troubles, now)
	pauseStatus(vmi, o, now)
	if o.State.Domain == nil {
		return
	}
	live := o.State.Domain
	vmi.Status.Interfaces = Interfaces(vmi, o)
	vmi.Status.VolumeStatus = VolumeStatus(vmi, o)
	if live.OS != nil && live.OS.Type != nil && live.OS.Type.Machine != "" {
		vmi.Status.Machine = &v1.Machine{Type: live.OS.Type.Machine}
	}
	vmi.Status.SelinuxContext = selinuxContext(live)
	vcpuStatus(vmi, o, now)
	memoryStatus(vmi, o, now)
	agentStatus(vmi, o, now)
	emulationStatus(vmi, live, now)
	migrationStatus(vmi, o.Facts, now)
}

// selinuxContext is the context the guest's process runs in, or what KubeVirt
// writes where there is none.
func selinuxContext(live *libvirtxml.Domain) string {
	for _, l := range live.SecLabel {
		if l.Model == "selinux" && l.Label != "" {
			return l.Label
		}
	}
	return noSELinux
}

// noSELinux is what KubeVirt writes as the context of a guest that has none.
const noSELinux = "none"

// Reasons of the Paused condition, as KubeVirt spells them.
const (
	// ReasonPausedByUser: somebody asked for it.
	ReasonPausedByUser = "PausedByUser"
	// ReasonPausedByMigration: it stands still so that its migration can end.
	ReasonPausedByMigration = "PausedByMigrationMonitor"
	// ReasonPausedIOError: a disk failed.
	ReasonPausedIOError = "PausedIOError"
)

// pauseStatus mirrors a guest that stands still, for the reasons KubeVirt reports. Other
// than there, a condition says why the guest stands still now, and not why it once
// did.
func pauseStatus(vmi *v1.VirtualMachineInstance, o Observation, now time.Time) {
	reason, message := pauseOf(vmi, o)
	if reason == "" {
		vmistatus.RemoveCondition(vmi, v1.VirtualMachineInstancePaused)
		return
	}
	setTrue(vmi, v1.VirtualMachineInstancePaused, reason, message, now)
}

func pauseOf(vmi *v1.VirtualMachineInstance, o Observation) (reason, message string) {
	if o.State.Status != StatusPaused {
		return "", ""
	}
	switch {
	case o.State.Reason == ReasonIOError:
		return ReasonPausedIOError, "the guest was paused by an error of a disk"
	case pausedToEnd(vmi, o):
		return ReasonPausedByMigration, "the guest stands still so that its migration can end"
	case o.State.held() && !o.State.Metadata.Paused:
		return "", "" // on its way
	case o.State.Reason == ReasonUser, o.State.Metadata.Paused && !o.State.busy():
		return ReasonPausedByUser, "the guest was paused by a user"
	}
	return "", ""
}

// pausedToEnd tells whether the guest was paused so that its migration can end.
func pausedToEnd(vmi *v1.VirtualMachineInstance, o Observation) bool {
	m := vmi.Status.MigrationState
	if m == nil || m.Mode != v1.MigrationPaused || m.Completed || m.SourceNode != o.Node {
		return false
	}
	return o.State.Reason == ReasonMigration || o.State.Reason == ReasonUser && !o.State.Metadata.Paused
}

// busy tells whether the domain stands still because somebody is at work on it.
func (s *State) busy() bool {
	switch s.Reason {
	case ReasonPostcopy, ReasonPostcopyFailed, ReasonStartingUp, ReasonSave, ReasonDump, ReasonSnapshot, ReasonShuttingDown:
		return true
	}
	return false
}

// troubleStatus tells what could not be done for the guest, or that all could.
func troubleStatus(vmi *v1.VirtualMachineInstance, troubles []Trouble, now time.Time) {
	if len(troubles) == 0 {
		vmistatus.RemoveCondition(vmi, v1.VirtualMachineInstanceSynchronized)
		return
	}
	vmistatus.SetCondition(vmi, v1.VirtualMachineInstanceCondition{
		Type: v1.VirtualMachineInstanceSynchronized, Status: corev1.ConditionFalse,
		Reason: ReasonSyncFailed, Message: troublesText(troubles),
	}, now)
}

// emulationStatus mirrors whether the guest has to do without hardware virtualisation.
func emulationStatus(vmi *v1.VirtualMachineInstance, live *libvirtxml.Domain, now time.Time) {
	if !Emulated(live) {
		vmistatus.RemoveCondition(vmi, v1.VirtualMachineInstanceSoftwareEmulation)
		return
	}
	setTrue(vmi, v1.VirtualMachineInstanceSoftwareEmulation, "SoftwareEmulation", "the guest's CPUs are emulated in software, which is slow", now)
}

// migrationStatus tells whether and how the guest can be moved, where the facts to tell
// that are known.
func migrationStatus(vmi *v1.VirtualMachineInstance, f Facts, now time.Time) {
	if f.Dir == "" {
		return
	}
	cond, method := LiveMigratable(vmi, f)
	vmi.Status.MigrationMethod = method
	vmistatus.SetCondition(vmi, cond, now)
	vmistatus.SetCondition(vmi, StorageLiveMigratable(vmi, f), now)
}

func setTrue(vmi *v1.VirtualMachineInstance, t v1.VirtualMachineInstanceConditionType, reason, message string, now time.Time) {
	vmistatus.SetCondition(vmi, v1.VirtualMachineInstanceCondition{Type: t, Status: corev1.ConditionTrue, Reason: reason, Message: message}, now)
}
