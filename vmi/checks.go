// SPDX-License-Identifier: Apache-2.0

package vmi

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/handoff"
	"github.com/virtloom/virtloom/vmi/validate"
)

// check is one precondition of the launcher Pod. run returns the wait that blocks the
// Pod, nil if the condition holds.
type check struct {
	name string
	run  func(Snapshot) *Wait
}

// checks run in this order; the order is policy. Conditions that a user must correct come
// before those that only take time.
var checks = []check{
	// Unsupported specs are rejected before anything is created for them. Webhooks
	// reject them as well, where there are any.
	{"allowed", allowed},
	// A claim that does not exist would leave the Pod unschedulable forever.
	{"claims", claimsExist},
	// The migration creates the launcher Pod of a VMI received from another cluster.
	{"receiver", notReceived},
	// The launcher Pod must be placed on a node with the required TSC frequency.
	{"clock", clockKnown},
	{"imports", importsDone},
	// The first-consumer Pod suffices until the claims are provisioned, and blocks afterwards.
	{"consumer", noTemporary},
	// A migrating VMI gets no Pod from this controller.
	{"migration", noMigration},
	// A Pod created by a migration may run the domain, even if the object has lost
	// its status.
	{"elsewhere", nowhereElse},
	// A force-removed object (finalizer removed by a user) may have left its domain
	// running, with the same disks.
	{"earlier", earlierEnded},
	// Names are intents: while the name is taken, no launcher Pod can be created.
	{"name", nameFree},
}

// lastChecks run once the backend storage claim is settled.
var lastChecks = []check{
	{"container-paths", pathsAllowed},
	{"networks", specValid},
}

// evaluate runs the checks in order.
//
// It stops at the first one that blocks, as the others would report what follows from it: a claim that
// does not exist has no DataVolume that imports, and a Pod that must not be created needs no name.
func evaluate(s Snapshot, checks []check) []Check {
	out := make([]Check, 0, len(checks))
	for _, c := range checks {
		w := c.run(s)
		out = append(out, Check{Name: c.name, Wait: w})
		if w != nil {
			break
		}
	}
	return out
}

// allowed rejects fields whose feature gate is disabled and values out of range.
// containerPath volumes have a check of their own, because KubeVirt's controller has a
// separate reason for them.
func allowed(s Snapshot) *Wait {
	gates := validate.Gates{On: append(slices.Clone(s.Config.FeatureGates), validate.ContainerPaths), Off: s.Config.DisabledFeatureGates}
	w := refused(s, validate.Check(s.VMI, gates), func(f validate.Fault) string { return f.Field + ": " + f.Text() + " (" + f.Remedy + ")" })
	if w != nil {
		w.Until = "the VirtualMachineInstance is recreated, or the cluster configuration allows the field"
	}
	return w
}

// refused returns the wait for a VMI whose spec must be corrected; nil if there are no
// causes. The message names the first causes only: people read conditions.
func refused[T any](s Snapshot, wrong []T, text func(T) string) *Wait {
	if len(wrong) == 0 {
		return nil
	}
	const most = 8
	var all []string
	for _, w := range wrong[:min(len(wrong), most)] {
		all = append(all, text(w))
	}
	if more := len(wrong) - len(all); more > 0 {
		all = append(all, fmt.Sprintf("and %d more", more))
	}
	return &Wait{
		Reason: ReasonFailedCreateValidation, Message: "failed create validation: " + strings.Join(all, "; "),
		Object: vmiObject(s.VMI), Until: "the VirtualMachineInstance is recreated", Responsible: handoff.ByUser,
	}
}

// notReceived blocks a VMI that another cluster migrates here.
func notReceived(s Snapshot) *Wait {
	if !receiver(s.VMI) {
		return nil
	}
	return &Wait{
		Reason: string(v1.WaitingForSync), Message: "the VirtualMachineInstance is the target of a migration from another cluster",
		Object: vmiObject(s.VMI), Until: "the migration creates the target Pod", Responsible: handoff.ByController, Condition: v1.VirtualMachineInstanceReady,
	}
}

// clockKnown requires the topology hints for Pod placement in the status.
func clockKnown(s Snapshot) *Wait {
	if s.VMI.Status.TopologyHints != nil {
		return nil
	}
	hints, err := s.Config.TopologyHints(s.VMI, s.Nodes, s.Config.MinimumTSC)
	switch {
	case err != nil && TSCRequirement(s.VMI) == TSCForBoot:
		return &Wait{
			Reason: ReasonFailedTopologyHints, Message: err.Error(), Object: "Nodes",
			Until: "a node reports its TSC frequency, or the cluster configures a minimum", Responsible: handoff.ByUser,
		}
	case err == nil && hints != nil:
		return &Wait{
			Reason: "WaitingForTopologyHints", Message: "status.topologyHints is not stored yet",
			Object: vmiObject(s.VMI), Until: "status.topologyHints is stored", Responsible: handoff.ByController, Condition: v1.VirtualMachineInstanceReady,
		}
	}
	return nil
}

// noTemporary waits for the first-consumer Pod of the VMI's claims.
func noTemporary(s Snapshot) *Wait {
	all := temporaries(s)
	if len(all) == 0 {
		return nil
	}
	object := podObject(all[0])
	// It has done its work. While it exists the claims may be attached to its node, and a launcher Pod
	// elsewhere would wait for the volumes to be detached, with an error that misleads.
	if !firstConsumer(s) {
		return &Wait{
			Reason: v1.PodTerminatingReason, Message: object + " has completed and is not deleted yet", Object: object,
			Until: "the Pod is deleted", Responsible: handoff.ByKubelet, Condition: v1.VirtualMachineInstanceReady,
		}
	}
	return &Wait{
		Reason: "WaitingForFirstConsumer", Message: object + " is the first consumer of the VirtualMachineInstance's claims", Object: object,
		Until: "the DataVolumes are populated", Responsible: handoff.ByStorage, Condition: v1.VirtualMachineInstanceProvisioning,
	}
}

// pathsAllowed rejects containerPath volumes unless the cluster enables them.
func pathsAllowed(s Snapshot) *Wait {
	if i := containerPath(s.VMI); i >= 0 && !s.Config.ContainerPaths {
		return &Wait{
			Reason:  ReasonContainerPathVolumesDisabled,
			Message: fmt.Sprintf("spec.volumes[%d].containerPath: enable feature gate ContainerPathVolumes, or remove the volume", i),
			Object:  vmiObject(s.VMI), Until: "the feature gate is enabled", Responsible: handoff.ByUser,
		}
	}
	return nil
}

// containerPath returns the index of the first containerPath volume shared by a
// file system; -1 if there is none.
func containerPath(vmi *v1.VirtualMachineInstance) int {
	return slices.IndexFunc(vmi.Spec.Volumes, func(v v1.Volume) bool { return v.ContainerPath != nil && shared(vmi, v.Name) })
}

func shared(vmi *v1.VirtualMachineInstance, volume string) bool {
	return slices.ContainsFunc(vmi.Spec.Domain.Devices.Filesystems, func(f v1.Filesystem) bool {
		return f.Name == volume && f.Virtiofs != nil
	})
}

// lacksVirtiofs returns the name of the virtiofs container that the Pod lacks for a
// containerPath volume; empty if there is none.
func lacksVirtiofs(vmi *v1.VirtualMachineInstance, p *corev1.Pod) string {
	for i := range vmi.Spec.Volumes {
		v := &vmi.Spec.Volumes[i]
		if v.ContainerPath == nil || !shared(vmi, v.Name) {
			continue
		}
		name := "virtiofs-" + v.Name
		if !slices.ContainsFunc(p.Spec.Containers, func(c corev1.Container) bool { return c.Name == name }) {
			return name
		}
	}
	return ""
}

// specValid applies the configured SpecValidator.
func specValid(s Snapshot) *Wait {
	return refused(s, s.Config.SpecValidator(s.VMI), func(c metav1.StatusCause) string { return c.Field + ": " + c.Message })
}

// nameFree requires that no foreign Pod has the launcher Pod's name.
func nameFree(s Snapshot) *Wait {
	if s.Foreign == nil {
		return nil
	}
	object := podObject(s.Foreign)
	return &Wait{
		Reason:  ReasonFailedCreate,
		Message: object + " has the name of the launcher Pod and a different owner; delete it",
		Object:  object, Until: "that Pod is deleted", Responsible: handoff.ByUser,
	}
}

// nowhereElse blocks a Pod while one created by a migration of the VMI exists. An object
// that was replaced as a whole has lost the status that records this.
func nowhereElse(s Snapshot) *Wait {
	for _, p := range s.Pods {
		if p.Labels[v1.MigrationJobLabel] != "" && !PodDown(p) {
			object := podObject(p)
			return &Wait{
				Reason:  ReasonFailedCreate,
				Message: object + ", created by a migration, may run the domain; delete it if it does not",
				Object:  object, Until: "that Pod has ended", Responsible: handoff.ByUser,
			}
		}
	}
	return nil
}

// earlierEnded waits for the Pods of deleted objects with the same name.
func earlierEnded(s Snapshot) *Wait {
	for _, p := range s.Earlier {
		// A Pod that was never scheduled never ran a domain.
		if p.Spec.NodeName == "" || PodDown(p) {
			continue
		}
		object := podObject(p)
		return &Wait{
			Reason: v1.PodTerminatingReason, Message: object + " of a deleted VirtualMachineInstance with the same name may still run its domain",
			Object: object, Until: "that Pod has ended", Responsible: handoff.ByKubelet, Condition: v1.VirtualMachineInstanceReady,
		}
	}
	return nil
}

// noMigration blocks a Pod while a migration of the VMI is active.
func noMigration(s Snapshot) *Wait {
	for _, m := range s.Migrations {
		switch m.Status.Phase {
		// In these phases a migration has no target Pod in which the domain could be.
		case v1.MigrationPhaseUnset, v1.MigrationPending, v1.MigrationSucceeded, v1.MigrationFailed,
			v1.MigrationWaitingForSync, v1.MigrationSynchronizing:
			continue
		case v1.MigrationScheduling:
			if m.IsDecentralizedSource() { // the target is in another cluster
				continue
			}
		}
		return &Wait{
			Reason:  ReasonFailedCreate,
			Message: fmt.Sprintf("migration %s is in phase %s; waiting for it to end", m.Name, m.Status.Phase),
			Object:  fmt.Sprintf("VirtualMachineInstanceMigration %s/%s", s.VMI.Namespace, m.Name),
			Until:   "the migration has ended", Responsible: handoff.ByController,
		}
	}
	return nil
}
