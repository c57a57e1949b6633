// SPDX-License-Identifier: Apache-2.0

package migration

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	v1 "kubevirt.io/api/core/v1"
)

// Reasons of answers to a request to evict a Pod, besides those of other automatic migrations.
const (
	// ReasonNotOurs: the Pod is none of a guest's.
	ReasonNotOurs Reason = "NoPodOfAGuest"
	// ReasonPodEnded: nothing runs in the Pod any more.
	ReasonPodEnded Reason = "PodEnded"
	// ReasonPlugged: the Pod holds volumes that are plugged into a running guest.
	ReasonPlugged Reason = "VolumesInUse"
	// ReasonNotOnNode: the guest does not run where the Pod is; it may be about to move there.
	ReasonNotOnNode Reason = "TargetPod"
	// ReasonEvictionBegun: the guest was asked to leave its node.
	ReasonEvictionBegun Reason = "EvacuationTriggered"
	// ReasonEvictionUnderWay: the guest had been asked before.
	ReasonEvictionUnderWay Reason = "EvacuationInProgress"
)

// Eviction is a request to evict a Pod.
type Eviction struct {
	// Pod is the Pod. Required.
	Pod *corev1.Pod
	// Guest is the one the Pod belongs to; its VMI is nil when there is none. Of its other fields only
	// Migrations is looked at.
	Guest Guest
	// Descheduler says that the request is a descheduler's.
	Descheduler bool
	// Strategy is the cluster's eviction strategy, for guests without one; nil means None.
	Strategy *v1.EvictionStrategy
	// Config is the configuration, with defaults filled in.
	Config Config
}

// EvictionAnswer is what is answered. A request that is not allowed is to be told "429 Too Many
// Requests", upon which those who drain nodes ask again.
type EvictionAnswer struct {
	// Allowed lets the Pod go.
	Allowed bool
	// Reason and Message say why. Deschedulers know by the message that the guest leaves by itself.
	Reason  Reason
	Message string
	// Mark is how to ask the guest to leave; nil for not at all. If that fails, the request is to be
	// refused with the error.
	Mark *EvictionMark
}

// EvictionMark asks a guest to leave its node. For a dry run, it is written as one.
type EvictionMark struct {
	// Node is to be the guest's status.evacuationNodeName. The guest must be there when it is written.
	Node string
	// Source is to be its annotation kubevirt.io/eviction-source, which is to go if it is empty.
	Source string
}

// Apply makes the mark on the object.
func (m EvictionMark) Apply(vmi *v1.VirtualMachineInstance) {
	vmi.Status.EvacuationNodeName = m.Node
	if m.Source == "" {
		delete(vmi.Annotations, v1.EvictionSourceAnnotation)
		return
	}
	if vmi.Annotations == nil {
		vmi.Annotations = map[string]string{}
	}
	vmi.Annotations[v1.EvictionSourceAnnotation] = m.Source
}

// Evict answers a request to evict a Pod: the Pod of a guest that can move is not let go, the guest is
// asked to leave the node instead. It is pure.
func Evict(e Eviction, now time.Time) EvictionAnswer {
	vmi := e.Guest.VMI
	switch app := e.Pod.Labels[v1.AppLabel]; {
	case app != launcherApp && app != attachmentApp:
		return allow(ReasonNotOurs, "the Pod is neither a guest's nor holds its volumes")
	case terminal(e.Pod):
		return allow(ReasonPodEnded, "nothing runs in the Pod any more")
	case vmi == nil:
		return allow(ReasonGuestNotFound, "the guest of the Pod does not exist")
	case vmi.IsFinal():
		return allow(ReasonGuestFinal, fmt.Sprintf("the guest is in phase %s", vmi.Status.Phase))
	case app == attachmentApp:
		return deny(ReasonPlugged, fmt.Sprintf("the Pod holds volumes that are plugged into guest \"%s/%s\"; it goes when the guest leaves", vmi.Namespace, vmi.Name))
	}
	if a := e.byStrategy(); a != nil {
		return *a
	}
	return e.ask(now)
}

// byStrategy answers where the guest's strategy leaves nothing to ask; nil where it does.
func (e Eviction) byStrategy() *EvictionAnswer {
	vmi := e.Guest.VMI
	strategy := StrategyOf(vmi, e.Strategy)
	var a EvictionAnswer
	switch {
	case strategy == nil || *strategy == v1.EvictionStrategyNone:
		a = allow(ReasonStrategyNone, "the guest's eviction strategy is None")
	case *strategy == v1.EvictionStrategyExternal, vmi.IsMigratable():
		return nil
	case *strategy == v1.EvictionStrategyLiveMigrateIfPossible && onTheWay(vmi):
		a = deny(ReasonEvictionUnderWay, "Migration in progress: the guest is being moved")
	case *strategy == v1.EvictionStrategyLiveMigrateIfPossible && vmi.IsRunning() && conditionOf(vmi, v1.VirtualMachineInstanceIsMigratable) == nil:
		a = deny(ReasonNotMigratable, "the guest's node has not said yet whether the guest can be migrated; try again")
	case *strategy == v1.EvictionStrategyLiveMigrateIfPossible:
		a = allow(ReasonNotMigratable, "the guest cannot be migrated, and its eviction strategy is LiveMigrateIfPossible")
	default:
		a = deny(ReasonNotMigratable, fmt.Sprintf("VMI %s is configured with an eviction strategy but is not live-migratable", vmi.Name))
	}
	return &a
}

// ask has the guest asked to leave, unless it was asked already or is not there.
func (e Eviction) ask(now time.Time) EvictionAnswer {
	vmi := e.Guest.VMI
	// Deschedulers look for these words.
	triggered := fmt.Sprintf("Eviction triggered evacuation of VMI \"%s/%s\"", vmi.Namespace, vmi.Name)
	switch node := vmi.Status.NodeName; {
	case node == "" || node != e.Pod.Spec.NodeName:
		return deny(ReasonNotOnNode, "Eviction request for target Pod")
	case vmi.Status.EvacuationNodeName == node:
		a := deny(ReasonEvictionUnderWay, "Evacuation in progress: "+triggered)
		if !e.Descheduler && descheduled(vmi) { // it is not a matter of balance any more
			a.Mark = &EvictionMark{Node: node}
		}
		return a
	}
	if e.Descheduler {
		if s := e.Guest.cooling(e.Config, time.Time{}, now); s != nil {
			return deny(s.Reason, s.Message)
		}
	}
	a := deny(ReasonEvictionBegun, triggered)
	a.Mark = &EvictionMark{Node: vmi.Status.NodeName}
	if e.Descheduler {
		a.Mark.Source = SourceDescheduler
	}
	return a
}

func allow(r Reason, message string) EvictionAnswer {
	return EvictionAnswer{Allowed: true, Reason: r, Message: message}
}

func deny(r Reason, message string) EvictionAnswer {
	return EvictionAnswer{Reason: r, Message: message}
}
