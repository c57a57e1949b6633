// SPDX-License-Identifier: Apache-2.0

package status

import (
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	v1 "kubevirt.io/api/core/v1"
	"libvirt.org/go/libvirtxml"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/action"
	"github.com/virtloom/virtloom/domain/convert"
	"github.com/virtloom/virtloom/domain/guestagent"
	"github.com/virtloom/virtloom/internal/vmistatus"
)

// Observation is the input of a status: a VMI that runs on a node, as the node sees it.
// Unknown parts leave the corresponding status as it is.
type Observation struct {
	// Node is the name of the node.
	Node string
	// State is the domain, with its live XML; nil if there is none: then only the phases of
	// volumes are reflected.
	State *domain.State
	// Guest is the last report of the guest agent; nil if unknown.
	Guest *guestagent.Info
	// Facts are the facts of the node; without Dir the migration conditions are left alone.
	Facts convert.Facts
	// Credentials is the state of the propagation of access credentials; nil if unknown.
	Credentials *CredentialSync
	// Failures are the actions for the VMI that failed last.
	Failures []action.Failure
	// Checksums are those of the VMI's images.
	Checksums Checksums
}

// live returns the domain's XML; nil if unknown.
func (o Observation) live() *libvirtxml.Domain {
	if o.State == nil {
		return nil
	}
	return o.State.Domain
}

// reported returns the report of the guest agent; nil if unknown. While the file systems are
// frozen the agent reports nothing else, and has most commands disabled.
func (o Observation) reported() *guestagent.Info {
	if o.Guest == nil || o.Guest.Frozen {
		return nil
	}
	return o.Guest
}

// Reflect returns a copy of the VMI with the status of the observation. Only fields that the
// node owns change: the phase while the domain runs, interfaces, volumeStatus, kernelBootStatus, guestOSInfo,
// fsFreezeStatus, memory.guestCurrent and guestRequested, machine, currentCPUTopology,
// selinuxContext, migrationMethod and the conditions of the node. It is idempotent, and
// changes no VMI whose phase is final. It returns nil for nil.
func Reflect(vmi *v1.VirtualMachineInstance, o Observation, now time.Time) *v1.VirtualMachineInstance {
	if vmi == nil {
		return nil
	}
	out := vmi.DeepCopy()
	Mirror(out, o, now)
	return out
}

// Mirror is like [Reflect], but changes vmi in place.
func Mirror(vmi *v1.VirtualMachineInstance, o Observation, now time.Time) {
	if vmi.IsFinal() || o.State == nil {
		return
	}
	if p := Phase(vmi, o.State); p != vmi.Status.Phase && p != v1.Succeeded && p != v1.Failed {
		vmistatus.SetPhase(vmi, p, now)
	}
	FailureStatus(vmi, o.Failures, now)
	pauseStatus(vmi, o, now)
	if o.State.Domain == nil {
		return
	}
	live := o.State.Domain
	vmi.Status.Interfaces = Interfaces(vmi, o)
	vmi.Status.VolumeStatus = VolumeStatus(vmi, o)
	checksumStatus(vmi, o.Checksums)
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

// selinuxContext returns the context of the domain's process, or [NoSELinux].
func selinuxContext(live *libvirtxml.Domain) string {
	for _, l := range live.SecLabel {
		if l.Model == "selinux" && l.Label != "" {
			return l.Label
		}
	}
	return NoSELinux
}

// NoSELinux is KubeVirt's value of status.selinuxContext for a VMI without a context.
const NoSELinux = "none"

// Reasons of the Paused condition, as KubeVirt spells them.
const (
	// ReasonPausedByUser: a user has paused the VMI.
	ReasonPausedByUser = "PausedByUser"
	// reasonPausedByMigration: the VMI is paused so that its migration can complete.
	reasonPausedByMigration = "PausedByMigrationMonitor"
	// ReasonPausedIOError: a disk has failed.
	ReasonPausedIOError = "PausedIOError"
)

// pauseStatus reflects a paused domain, with KubeVirt's reasons. Unlike in KubeVirt the
// condition has the reason of now, not that of the first pause.
func pauseStatus(vmi *v1.VirtualMachineInstance, o Observation, now time.Time) {
	reason, message := pauseOf(vmi, o)
	if reason == "" {
		vmistatus.RemoveCondition(vmi, v1.VirtualMachineInstancePaused)
		return
	}
	setTrue(vmi, v1.VirtualMachineInstancePaused, reason, message, now)
}

func pauseOf(vmi *v1.VirtualMachineInstance, o Observation) (reason, message string) {
	if o.State.Status != domain.StatusPaused {
		return "", ""
	}
	switch {
	case o.State.Reason == domain.ReasonIOError:
		return ReasonPausedIOError, "VMI was paused, low-level IO error detected"
	case pausedToEnd(vmi, o):
		return reasonPausedByMigration, "VMI was paused by the migration monitor"
	case o.State.Held() && !o.State.Metadata.Paused:
		return "", "" // it is about to be resumed at the end of its migration
	case o.State.Reason == domain.ReasonUser, o.State.Metadata.Paused && !o.State.Busy():
		return ReasonPausedByUser, "VMI was paused by user"
	}
	return "", ""
}

// pausedToEnd reports whether the domain was paused so that its migration can complete.
func pausedToEnd(vmi *v1.VirtualMachineInstance, o Observation) bool {
	m := vmi.Status.MigrationState
	if m == nil || m.Mode != v1.MigrationPaused || m.Completed || m.SourceNode != o.Node {
		return false
	}
	return o.State.Reason == domain.ReasonMigration || o.State.Reason == domain.ReasonUser && !o.State.Metadata.Paused
}

// FailureStatus sets the condition Synchronized to False with the failures, or removes it if
// there are none.
func FailureStatus(vmi *v1.VirtualMachineInstance, failures []action.Failure, now time.Time) {
	if len(failures) == 0 {
		vmistatus.RemoveCondition(vmi, v1.VirtualMachineInstanceSynchronized)
		return
	}
	vmistatus.SetCondition(vmi, v1.VirtualMachineInstanceCondition{
		Type: v1.VirtualMachineInstanceSynchronized, Status: corev1.ConditionFalse,
		Reason: ReasonSyncFailed, Message: FailuresText(failures),
	}, now)
}

// emulationStatus reflects whether the domain runs without hardware virtualization.
func emulationStatus(vmi *v1.VirtualMachineInstance, live *libvirtxml.Domain, now time.Time) {
	if !Emulated(live) {
		vmistatus.RemoveCondition(vmi, v1.VirtualMachineInstanceSoftwareEmulation)
		return
	}
	setTrue(vmi, v1.VirtualMachineInstanceSoftwareEmulation, "SoftwareEmulation", "VMI runs with software emulation, which is slow", now)
}

// migrationStatus reflects whether and how the VMI can be migrated, if the facts are known.
func migrationStatus(vmi *v1.VirtualMachineInstance, f convert.Facts, now time.Time) {
	if f.Dir == "" {
		return
	}
	cond, method := LiveMigratable(vmi, f)
	vmi.Status.MigrationMethod = method
	vmistatus.SetCondition(vmi, cond, now)
	vmistatus.SetCondition(vmi, storageLiveMigratable(vmi, f), now)
}

func setTrue(vmi *v1.VirtualMachineInstance, t v1.VirtualMachineInstanceConditionType, reason, message string, now time.Time) {
	vmistatus.SetCondition(vmi, v1.VirtualMachineInstanceCondition{Type: t, Status: corev1.ConditionTrue, Reason: reason, Message: message}, now)
}

// FailuresText returns the texts of all failures on one line.
func FailuresText(all []action.Failure) string {
	var out []string
	for _, t := range all {
		out = append(out, t.String())
	}
	return strings.Join(out, "; ")
}
