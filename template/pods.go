// SPDX-License-Identifier: Apache-2.0

package template

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// PodKind is one kind of Pod, or a set of kinds joined with |.
type PodKind uint8

// The Pods that a guest needs.
const (
	// LauncherPod is where the guest runs.
	LauncherPod PodKind = 1 << iota
	// TemporaryPod looks like the launcher and ends at once: it makes the scheduler choose a node for claims that wait
	// for their first consumer.
	TemporaryPod
	// TargetPod is where a migration takes the guest to.
	TargetPod
	// AttachmentPod holds claims on the guest's node that are plugged into the running guest.
	AttachmentPod
	// TriggerPod makes a claim that waits for its first consumer be provisioned on the guest's node.
	TriggerPod
	// ExporterPod serves the contents of claims (VirtualMachineExport).
	ExporterPod

	// GuestPods are those that have the shape of a launcher. Stages apply to them unless they say otherwise.
	GuestPods = LauncherPod | TemporaryPod | TargetPod
	// HotplugPods are those that serve volumes plugged into a running guest.
	HotplugPods = AttachmentPod | TriggerPod
	// AllPods is every kind.
	AllPods = GuestPods | HotplugPods | ExporterPod
)

var podKindNames = []string{"launcher", "temporary", "migration target", "hotplug attachment", "hotplug trigger", "exporter"}

// String names the kinds, separated by commas.
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

// Temporary renders the Pod that stands in for the launcher while a claim waits for its first consumer. It asks for the
// same nodes, resources and claims, does nothing, and is annotated with kubevirt.io/ephemeral-provisioning.
func (r *Renderer) Temporary(in Input) (*corev1.Pod, error) { return r.Render(TemporaryPod, in) }

// MigrationTarget renders the Pod to which Input.Migration moves the VMI.
func (r *Renderer) MigrationTarget(in Input) (*corev1.Pod, error) { return r.Render(TargetPod, in) }

// HotplugAttachment renders the Pod that holds all volumes of Input.Hotplug beside the guest's own Pod. With
// Input.Migration it renders the one beside the migration's target.
func (r *Renderer) HotplugAttachment(in Input) (*corev1.Pod, error) {
	return r.Render(AttachmentPod, in)
}

// HotplugTrigger renders the Pod that has the only volume of Input.Hotplug provisioned on the guest's node.
func (r *Renderer) HotplugTrigger(in Input) (*corev1.Pod, error) { return r.Render(TriggerPod, in) }

// Exporter renders the Pod that serves Input.Export. It needs no VMI.
func (r *Renderer) Exporter(in Input) (*corev1.Pod, error) { return r.Render(ExporterPod, in) }
