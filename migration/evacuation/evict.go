// SPDX-License-Identifier: Apache-2.0

package evacuation

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/internal/launcherpod"
	"github.com/virtloom/virtloom/internal/vmistatus"
	"github.com/virtloom/virtloom/migration"
)

// Reasons of answers to a request to evict a Pod, besides those of other automatic migrations.
const (
	// reasonNotOurs: the Pod is not a VMI's.
	reasonNotOurs migration.Reason = "NoPodOfAGuest"
	// reasonPodEnded: the Pod has ended.
	reasonPodEnded migration.Reason = "PodEnded"
	// reasonPlugged: the Pod holds volumes that are hotplugged into a running VMI.
	reasonPlugged migration.Reason = "VolumesInUse"
	// reasonNotOnNode: the VMI does not run where the Pod is; it may be about to migrate there.
	reasonNotOnNode migration.Reason = "TargetPod"
	// ReasonEvictionBegun: the VMI was requested to leave its node.
	ReasonEvictionBegun migration.Reason = "EvacuationTriggered"
	// reasonEvictionUnderWay: the VMI had been requested to leave before.
	reasonEvictionUnderWay migration.Reason = "EvacuationInProgress"
)

// Eviction is a request to evict a Pod.
type Eviction struct {
	// Pod is the Pod. Required.
	Pod *corev1.Pod
	// Guest is the Pod's VMI; its VMI is nil when there is none. Of its other fields only
	// Migrations is used.
	Candidate Candidate
	// Descheduler says that a descheduler sent the request.
	Descheduler bool
	// Strategy is the cluster's eviction strategy, for VMIs without one; nil means None.
	Strategy *v1.EvictionStrategy
	// Config is the configuration, with defaults filled in.
	Config migration.Config
}

// EvictionAnswer is the answer to the request. One that is not allowed gets the status "429 Too Many
// Requests", upon which clients that drain nodes retry.
type EvictionAnswer struct {
	// Allowed permits the eviction of the Pod.
	Allowed bool
	// Reason and Message say why. Deschedulers detect by the message that the VMI leaves by itself.
	Reason  migration.Reason
	Message string
	// Mark is the request for the VMI to leave; nil for none. If writing it fails, the eviction is to
	// be denied with the error.
	Mark *EvictionMark
}

// EvictionMark requests a VMI to leave its node. For a dry run, it is written as one.
type EvictionMark struct {
	// Node is the new status.evacuationNodeName. The VMI must be there when it is written.
	Node string
	// Source is the new annotation kubevirt.io/eviction-source; empty removes it.
	Source string
}

// Apply sets the mark on the object.
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

// Evict answers a request to evict a Pod: eviction of the Pod of a VMI that can be migrated is
// denied, and the VMI is requested to leave the node instead. It is pure.
//
// Differences from KubeVirt:
//
//   - A descheduler's eviction of a VMI in its cooldown is denied without the message by which the
//     descheduler would count on the VMI's leaving.
//   - A VMI that was requested to leave another node than its own can be requested again.
//   - With strategy LiveMigrateIfPossible eviction is denied until the node of a running VMI has
//     reported that it cannot be migrated, and while the VMI is being migrated.
//   - Eviction of the Pod that a VMI has left, or migrates to, is denied in either case with
//     KubeVirt's message for the latter.
func Evict(e Eviction, now time.Time) EvictionAnswer {
	vmi := e.Candidate.VMI
	switch app := e.Pod.Labels[v1.AppLabel]; {
	case app != launcherpod.LauncherApp && app != launcherpod.AttachmentApp:
		return allowEviction(reasonNotOurs, "the Pod neither belongs to a VMI nor holds its volumes")
	case launcherpod.Terminal(e.Pod):
		return allowEviction(reasonPodEnded, "the Pod has ended")
	case vmi == nil:
		return allowEviction(migration.ReasonGuestNotFound, "the VMI of the Pod does not exist")
	case vmi.IsFinal():
		return allowEviction(migration.ReasonGuestFinal, fmt.Sprintf("the VMI is in phase %s", vmi.Status.Phase))
	case app == launcherpod.AttachmentApp:
		return denyEviction(reasonPlugged, fmt.Sprintf("the Pod holds volumes that are hotplugged into VMI \"%s/%s\"; it is deleted when the VMI leaves", vmi.Namespace, vmi.Name))
	}
	if a := e.byStrategy(); a != nil {
		return *a
	}
	return e.ask(now)
}

// byStrategy answers where the VMI's strategy decides alone; nil otherwise.
func (e Eviction) byStrategy() *EvictionAnswer {
	vmi := e.Candidate.VMI
	strategy := strategyOf(vmi, e.Strategy)
	var a EvictionAnswer
	switch {
	case strategy == nil || *strategy == v1.EvictionStrategyNone:
		a = allowEviction(ReasonStrategyNone, "the VMI's eviction strategy is None")
	case *strategy == v1.EvictionStrategyExternal, vmi.IsMigratable():
		return nil
	case *strategy == v1.EvictionStrategyLiveMigrateIfPossible && onTheWay(vmi):
		a = denyEviction(reasonEvictionUnderWay, "Migration in progress: the VMI is being migrated")
	case *strategy == v1.EvictionStrategyLiveMigrateIfPossible && vmi.IsRunning() && vmistatus.Condition(vmi, v1.VirtualMachineInstanceIsMigratable) == nil:
		a = denyEviction(migration.ReasonNotMigratable, "the VMI's node has not reported yet whether the VMI is live migratable; retry")
	case *strategy == v1.EvictionStrategyLiveMigrateIfPossible:
		a = allowEviction(migration.ReasonNotMigratable, "the VMI is not live migratable, and its eviction strategy is LiveMigrateIfPossible")
	default:
		a = denyEviction(migration.ReasonNotMigratable, fmt.Sprintf("VMI %s is configured with an eviction strategy but is not live-migratable", vmi.Name))
	}
	return &a
}

// ask requests the VMI to leave, unless it was requested already or is not on the node.
func (e Eviction) ask(now time.Time) EvictionAnswer {
	vmi := e.Candidate.VMI
	// Deschedulers match this text.
	triggered := fmt.Sprintf("Eviction triggered evacuation of VMI \"%s/%s\"", vmi.Namespace, vmi.Name)
	switch node := vmi.Status.NodeName; {
	case node == "" || node != e.Pod.Spec.NodeName:
		return denyEviction(reasonNotOnNode, "Eviction request for target Pod")
	case vmi.Status.EvacuationNodeName == node:
		a := denyEviction(reasonEvictionUnderWay, "Evacuation in progress: "+triggered)
		if !e.Descheduler && descheduled(vmi) { // no longer a descheduler's request alone
			a.Mark = &EvictionMark{Node: node}
		}
		return a
	}
	if e.Descheduler {
		if s := e.Candidate.cooling(e.Config, time.Time{}, now); s != nil {
			return denyEviction(s.Reason, s.Message)
		}
	}
	a := denyEviction(ReasonEvictionBegun, triggered)
	a.Mark = &EvictionMark{Node: vmi.Status.NodeName}
	if e.Descheduler {
		a.Mark.Source = SourceDescheduler
	}
	return a
}

func allowEviction(r migration.Reason, message string) EvictionAnswer {
	return EvictionAnswer{Allowed: true, Reason: r, Message: message}
}

func denyEviction(r migration.Reason, message string) EvictionAnswer {
	return EvictionAnswer{Reason: r, Message: message}
}
