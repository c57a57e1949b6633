// SPDX-License-Identifier: Apache-2.0

package render

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// PodKind is one kind of Pod, or a set of kinds joined with |.
type PodKind uint8

// The Pods of a VMI.
const (
	// LauncherPod runs the guest.
	LauncherPod PodKind = 1 << iota
	// TemporaryPod has the shape of the launcher and ends at once: it makes the scheduler choose a node for claims that wait
	// for their first consumer.
	TemporaryPod
	// TargetPod is the target of a migration.
	TargetPod
	// AttachmentPod holds hotplugged claims on the VMI's node.
	AttachmentPod
	// TriggerPod triggers the provisioning of a claim, which waits for its first consumer, on the VMI's node.
	TriggerPod
	// ExporterPod serves the contents of claims (VirtualMachineExport).
	ExporterPod

	// GuestPods are the kinds with the shape of a launcher. Stages apply to them by default.
	GuestPods = LauncherPod | TemporaryPod | TargetPod
	// HotplugPods are the kinds that serve hotplugged volumes.
	HotplugPods = AttachmentPod | TriggerPod
	// AllPods is every kind.
	AllPods = GuestPods | HotplugPods | ExporterPod
)

var podKindNames = []string{"launcher", "temporary", "migration target", "hotplug attachment", "hotplug trigger", "exporter"}

// String returns the names of the kinds, separated by commas.
func (k PodKind) String() string {
	var names []string
	for i, name := range podKindNames {
		if k&(1<<i) != 0 {
			names = append(names, name)
		}
	}
	return strings.Join(names, ", ")
}

// Launcher renders the Pod in which the VMI runs.
func (r *Renderer) Launcher(in Input) (*corev1.Pod, error) { return r.Render(LauncherPod, in) }

// Temporary renders the Pod that stands in for the launcher while a claim waits for its first consumer. It requests the
// same nodes, resources and claims, runs no guest, and is annotated with kubevirt.io/ephemeral-provisioning.
func (r *Renderer) Temporary(in Input) (*corev1.Pod, error) { return r.Render(TemporaryPod, in) }

// MigrationTarget renders the target Pod of Input.Migration.
func (r *Renderer) MigrationTarget(in Input) (*corev1.Pod, error) { return r.Render(TargetPod, in) }

// HotplugAttachment renders the Pod that holds all volumes of Input.Hotplug for the VMI's Pod, or, with Input.Migration,
// for the migration's target.
func (r *Renderer) HotplugAttachment(in Input) (*corev1.Pod, error) {
	return r.Render(AttachmentPod, in)
}

// HotplugTrigger renders the Pod that triggers the provisioning of the only volume of Input.Hotplug on the VMI's node.
func (r *Renderer) HotplugTrigger(in Input) (*corev1.Pod, error) { return r.Render(TriggerPod, in) }

// Exporter renders the Pod that serves Input.Export. It needs no VMI.
func (r *Renderer) Exporter(in Input) (*corev1.Pod, error) { return r.Render(ExporterPod, in) }
