// SPDX-License-Identifier: Apache-2.0

package vmi

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/internal/vmirules"
)

// check is one condition that must hold before the guest's Pod is created. It
// returns what is to be waited for, nil if it holds.
type check struct {
	name string
	run  func(Snapshot) *Wait
}

// checks are made in this order; the order is policy. What a user has to mend comes
// before what only takes its time.
var checks = []check{
	// What no guest may ask for is refused before anything is done for it. Webhooks
	// refuse it as well, where there are any.
	{"allowed", allowed},
	// A claim that does not exist would leave the Pod unschedulable for ever.
	{"claims", claimsExist},
	// What is received from another cluster gets its Pod from its migration.
	{"receiver", notReceived},
	// A guest gets its Pod on a node that has the clock it counts on.
	{"clock", clockKnown},
	{"imports", importsDone},
	// The Pod that has claims provisioned is enough until it has, and in the way then.
	{"consumer", noTemporary},
	// A guest that is on its way to another node gets no Pod from us.
	{"migration", noMigration},
	// A Pod that a migration made may have the guest, also when the object has
	// lost all that was written about it.
	{"elsewhere", nowhereElse},
	// An object that is gone, because a user took its finalizer away, may have left its
	// guest behind, with the same disks.
	{"earlier", earlierEnded},
	// Names are intents: with the name taken there is no Pod to be had.
	{"name", nameFree},
}

// lastChecks are made once the claim for the guest's state is seen to.
var lastChecks = []check{
	{"container-paths", pathsAllowed},
	{"networks", specValid},
}

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

// allowed refuses what the cluster's feature gates do not let guests have, and more
// than a guest can have. Volumes of the Pod's own paths have a check of their own, as
// KubeVirt's controller has a reason of its own for them.
func allowed(s Snapshot) *Wait {
	gates := vmirules.Gates{On: append(slices.Clone(s.Config.FeatureGates), vmirules.ContainerPaths), Off: s.Config.DisabledFeatureGates}
	w := refused(s, vmirules.Check(s.VMI, gates), func(f vmirules.Fault) string { return f.Field + ": " + f.Text() + " (" + f.Remedy + ")" })
	if w != nil {
		w.Until = "the guest is made anew, or the cluster allows what it asks for"
	}
	return w
}

// refused is the wait for a guest that is made otherwise; nil if nothing is wrong with
// this one. It names the first of what is wrong: a condition is read by people.
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
		Object: vmiObject(s.VMI), Until: "the guest is made anew", By: ByUser,
	}
}

// notReceived lets nobody start what is to be received.
func notReceived(s Snapshot) *Wait {
	if !receiver(s.VMI) {
		return nil
	}
	return &Wait{
		Reason: string(v1.WaitingForSync), Message: "the guest is to be received from another cluster",
		Object: vmiObject(s.VMI), Until: "a migration makes its Pod", By: ByController, Condition: v1.VirtualMachineInstanceReady,
	}
}

// clockKnown requires the hints by which the Pod is placed to be stored.
func clockKnown(s Snapshot) *Wait {
	if s.VMI.Status.TopologyHints != nil {
		return nil
	}
	hints, err := s.Config.TopologyHints(s.VMI, s.Nodes, s.Config.MinimumTSC)
	switch {
	case err != nil && TSCRequirement(s.VMI) == TSCForBoot:
		return &Wait{
			Reason: ReasonFailedTopologyHints, Message: err.Error(), Object: "Nodes",
			Until: "a node has a frequency, or the cluster a minimum", By: ByUser,
		}
	case err == nil && hints != nil:
		return &Wait{
			Reason: "WaitingForTopologyHints", Message: "the frequency that the guest counts on is not stored yet",
			Object: vmiObject(s.VMI), Until: "status.topologyHints is stored", By: ByController, Condition: v1.VirtualMachineInstanceReady,
		}
	}
	return nil
}

// noTemporary waits for the Pod that has the guest's claims provisioned.
func noTemporary(s Snapshot) *Wait {
	all := s.temporaries()
	if len(all) == 0 {
		return nil
	}
	object := podObject(all[0])
	if !s.firstConsumer() {
		return &Wait{
			Reason: reasonPodTerminating, Message: object + " has done its work and is not gone yet", Object: object,
			Until: "the Pod is gone", By: ByKubelet, Condition: v1.VirtualMachineInstanceReady,
		}
	}
	return &Wait{
		Reason: "WaitingForFirstConsumer", Message: object + " has the guest's claims provisioned", Object: object,
		Until: "the DataVolumes have been filled", By: ByStorage, Condition: v1.VirtualMachineInstanceProvisioning,
	}
}

// pathsAllowed refuses volumes of the Pod's own paths where the cluster does not
// have them.
func pathsAllowed(s Snapshot) *Wait {
	if i := containerPath(s.VMI); i >= 0 && !s.Config.ContainerPaths {
		return &Wait{
			Reason:  ReasonContainerPathVolumesDisabled,
			Message: fmt.Sprintf("spec.volumes[%d].containerPath: enable feature gate ContainerPathVolumes, or do without the volume", i),
			Object:  vmiObject(s.VMI), Until: "the feature gate is enabled", By: ByUser,
		}
	}
	return nil
}

// containerPath finds a volume of the Pod's own that a file system shares; -1 if
// there is none.
func containerPath(vmi *v1.VirtualMachineInstance) int {
	return slices.IndexFunc(vmi.Spec.Volumes, func(v v1.Volume) bool { return v.ContainerPath != nil && shared(vmi, v.Name) })
}

func shared(vmi *v1.VirtualMachineInstance, volume string) bool {
	return slices.ContainsFunc(vmi.Spec.Domain.Devices.Filesystems, func(f v1.Filesystem) bool {
		return f.Name == volume && f.Virtiofs != nil
	})
}

// lacksVirtiofs names the container that a Pod needs and lacks to share a volume of
// its own paths; empty if there is none.
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

// specValid asks the validator.
func specValid(s Snapshot) *Wait {
	return refused(s, s.Config.SpecValidator(s.VMI), func(c metav1.StatusCause) string { return c.Field + ": " + c.Message })
}

// nameFree requires that no other Pod has the name of the guest's.
func nameFree(s Snapshot) *Wait {
	if s.Foreign == nil {
		return nil
	}
	object := podObject(s.Foreign)
	return &Wait{
		Reason:  ReasonFailedCreate,
		Message: object + " has the name of the guest's Pod and belongs to something else; delete it",
		Object:  object, Until: "that Pod is gone", By: ByUser,
	}
}

// nowhereElse refuses a Pod while one that a migration made for the guest is there.
// An object that was replaced as a whole has forgotten that it ran.
func nowhereElse(s Snapshot) *Wait {
	for _, p := range s.Pods {
		if p.Labels[v1.MigrationJobLabel] != "" && !PodDown(p) {
			object := podObject(p)
			return &Wait{
				Reason:  ReasonFailedCreate,
				Message: object + ", made for a migration, may have the guest; delete it if it does not",
				Object:  object, Until: "that Pod has ended", By: ByUser,
			}
		}
	}
	return nil
}

// earlierEnded waits for the Pods of earlier objects of the name.
func earlierEnded(s Snapshot) *Wait {
	for _, p := range s.Earlier {
		if p.Spec.NodeName == "" || PodDown(p) {
			continue
		}
		object := podObject(p)
		return &Wait{
			Reason: reasonPodTerminating, Message: object + " of an earlier object of this name, which is gone, may still have its guest",
			Object: object, Until: "that Pod has ended", By: ByKubelet, Condition: v1.VirtualMachineInstanceReady,
		}
	}
	return nil
}

// noMigration refuses a Pod while a migration of the VMI is under way.
func noMigration(s Snapshot) *Wait {
	for _, m := range s.Migrations {
		switch m.Status.Phase {
		case v1.MigrationPhaseUnset, v1.MigrationPending, v1.MigrationSucceeded, v1.MigrationFailed,
			v1.MigrationWaitingForSync, v1.MigrationSynchronizing:
			continue
		case v1.MigrationScheduling:
			if m.IsDecentralizedSource() { // it prepares what another cluster receives
				continue
			}
		}
		return &Wait{
			Reason:  ReasonFailedCreate,
			Message: fmt.Sprintf("migration %s is in phase %s; waiting for it to end", m.Name, m.Status.Phase),
			Object:  fmt.Sprintf("VirtualMachineInstanceMigration %s/%s", s.VMI.Namespace, m.Name),
			Until:   "the migration has ended", By: ByController,
		}
	}
	return nil
}
