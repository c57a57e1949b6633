// SPDX-License-Identifier: Apache-2.0

package migration_test

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/handoff"
	"github.com/virtloom/virtloom/internal/launcherpod"
	"github.com/virtloom/virtloom/migration"
)

const (
	receiverUID   = types.UID("receiver-uid")
	senderAddress = "198.51.100.1:9185"
	connectURL    = "203.0.113.1:9185"
	migrationID   = "one-move"
)

// newSender is a world whose migration sends its VMI away.
func newSender(t *testing.T) *world {
	t.Helper()
	w := newWorld(t)
	w.Config.Decentralized = true
	w.Migration.Spec.SendTo = &v1.VirtualMachineInstanceMigrationSource{MigrationID: migrationID, ConnectURL: connectURL}
	w.VMI.Status.SelinuxContext = "none"
	w.Sending = &migration.Sending{
		NodeSelectors: map[string]string{"cpu-vendor.node.kubevirt.io/AMD": "true"},
		Volumes:       []v1.StorageMigratedVolumeInfo{{VolumeName: "disk", SourcePVCInfo: &v1.PersistentVolumeClaimInfo{ClaimName: "disk"}}},
	}
	return w
}

// newReceiver is a world whose migration receives a VMI.
func newReceiver(t *testing.T) *world {
	t.Helper()
	w := newWorld(t)
	w.Config.Decentralized = true
	w.Migration.UID = receiverUID
	w.Migration.Spec.Receive = &v1.VirtualMachineInstanceMigrationTarget{MigrationID: migrationID}
	w.VMI.Annotations = map[string]string{v1.CreateMigrationTarget: "true"}
	w.VMI.Labels = nil
	w.VMI.Status = v1.VirtualMachineInstanceStatus{Phase: v1.WaitingForSync}
	delete(w.Pods, "src")
	return w
}

// clusters are a sender and a receiver in two clusters, with all that KubeVirt does between
// and beside them. Each of its methods does a step if it is its turn, so that calling
// them in any order is harmless.
type clusters struct {
	from, to *world
	// stock says that the sender's node knows no lease.
	stock bool
	// moving and at are what the hypervisors know.
	moving bool
	at     location
	begun  bool
	// before is the step that does not happen: "begin" or "switch".
	before string
}

type location string

const (
	atSource location = "source"
	atTarget location = "target"
)

func newClusters(t *testing.T, stock bool) *clusters {
	p := &clusters{from: newSender(t), to: newReceiver(t), stock: stock, at: atSource}
	if stock {
		delete(p.from.VMI.Annotations, handoff.Annotation)
	}
	return p
}

func stateIn(w *world) *v1.VirtualMachineInstanceMigrationState { return w.VMI.Status.MigrationState }

// isThere reports whether the migration is there for its synchronization controller.
func isThere(w *world) bool { return !w.Released || w.Migration.DeletionTimestamp == nil }

// accepts is what a synchronization controller demands before it writes.
func accepts(w *world) bool {
	ms := stateIn(w)
	return isThere(w) && !w.Migration.IsFinal() && (ms == nil || !ms.Completed && (ms.MigrationUID == "" || ms.MigrationUID == w.Migration.UID))
}

// push carries the sender's half to the receiver, as KubeVirt does.
func (p *clusters) push() {
	ms := stateIn(p.from)
	orphan := ms != nil && ms.AbortRequested && ms.EndTimestamp != nil
	if ms == nil || ms.SourceState == nil || ms.TargetState == nil || !isThere(p.from) && !orphan || !accepts(p.to) {
		return
	}
	if stateIn(p.to) == nil {
		p.to.VMI.Status.MigrationState = &v1.VirtualMachineInstanceMigrationState{}
	}
	out, address := stateIn(p.to), senderAddress
	out.SourceState = ms.SourceState.DeepCopy()
	out.SourceState.SyncAddress = &address
	out.SourceNode, out.SourcePod = ms.SourceState.Node, ms.SourceState.Pod
	common(out, ms)
	if ms.AbortRequested && ms.EndTimestamp != nil {
		out.Failed, out.Completed, out.AbortStatus, out.FailureReason = ms.Failed, ms.Completed, ms.AbortStatus, ms.FailureReason
	}
}

func common(out, ms *v1.VirtualMachineInstanceMigrationState) {
	if ms.VMIMConfigurationOptions != nil {
		out.VMIMConfigurationOptions = ms.VMIMConfigurationOptions
	}
	if ms.StartTimestamp != nil {
		out.StartTimestamp = ms.StartTimestamp
	}
	if ms.EndTimestamp != nil {
		out.EndTimestamp = ms.EndTimestamp
	}
}

// pull carries the receiver's half to the sender, which it knows by what was pushed.
func (p *clusters) pull() {
	ms := stateIn(p.to)
	if ms == nil || ms.TargetState == nil || ms.SourceState == nil || ms.SourceState.SyncAddress == nil || !isThere(p.to) || !accepts(p.from) {
		return
	}
	if stateIn(p.from) == nil {
		return // the receiver knows of it by its half alone
	}
	out, address := stateIn(p.from), connectURL
	out.TargetState = ms.TargetState.DeepCopy()
	out.TargetState.SyncAddress = &address
	t := ms.TargetState
	out.TargetNode, out.TargetPod = t.Node, t.Pod
	out.TargetNodeDomainDetected, out.TargetNodeDomainReadyTimestamp = t.DomainDetected, t.DomainReadyTimestamp
	if t.NodeAddress != nil {
		out.TargetNodeAddress = *t.NodeAddress
	}
	common(out, ms)
	out.Completed, out.Failed = ms.Completed, ms.Failed
}

// cancel carries the deletion of one side's migration to the other's.
func (p *clusters) cancel() {
	for _, way := range [][2]*world{{p.from, p.to}, {p.to, p.from}} {
		here, there := way[0], way[1]
		if here.Migration.DeletionTimestamp == nil || stateIn(here) == nil || !isThere(there) || there.Migration.DeletionTimestamp != nil {
			continue
		}
		if source, target := migration.Halves(stateIn(here)); source != there.Migration.UID && target != there.Migration.UID {
			continue
		}
		there.Migration.DeletionTimestamp = &metav1.Time{Time: there.Now}
	}
}

// targetPodRuns lets the target Pod start, and who reconciles the VMI's object see it.
func (p *clusters) targetPodRuns() {
	w := p.to
	w.PodBecomesReady(targetNode)
	switch pod := w.Pods["dst"]; {
	case w.VMI.IsFinal() || w.VMI.IsRunning():
	case pod == nil || launcherpod.Terminal(pod) || stateIn(w) != nil && stateIn(w).Failed:
		w.VMI.Status.Phase = v1.WaitingForSync
	default:
		w.VMI.Status.Phase, w.VMI.Status.NodeName = v1.Scheduled, targetNode
	}
}

func (p *clusters) podAlive() bool {
	pod := p.to.Pods["dst"]
	return pod != nil && pod.Status.Phase == corev1.PodRunning
}

// targetNodeActs is the virt-handler that receives.
func (p *clusters) targetNodeActs() {
	ms := stateIn(p.to)
	if ms == nil || ms.MigrationUID != p.to.Migration.UID || ms.Failed || ms.Completed || !p.podAlive() {
		return
	}
	now, address := metav1.NewTime(p.to.Now), "192.0.2.7"
	switch {
	case p.at == atTarget:
		ms.TargetNodeDomainDetected, ms.TargetState.DomainDetected = true, true
		ms.TargetNodeDomainReadyTimestamp, ms.TargetState.DomainReadyTimestamp = &now, &now
		ms.EndTimestamp, ms.Completed = &now, true
		p.to.VMI.Status.Phase, p.to.VMI.Status.NodeName = v1.Running, targetNode
		delete(p.to.VMI.Annotations, v1.CreateMigrationTarget)
	case p.moving:
		ms.TargetNodeDomainDetected, ms.TargetState.DomainDetected = true, true
	case ms.EndTimestamp != nil:
		ms.Failed, ms.Completed = true, true
	case ms.TargetNodeAddress == "":
		ms.TargetNodeAddress, ms.TargetState.NodeAddress = address, &address
	}
}

// sourceNodeBegins is the node that sends, at the begin of the migration.
func (p *clusters) sourceNodeBegins() {
	ms, now := stateIn(p.from), metav1.NewTime(p.from.Now)
	if ms == nil || p.begun || p.before == "begin" || ms.Failed || ms.Completed || ms.AbortRequested || ms.TargetNodeAddress == "" || p.from.VMI.IsFinal() {
		return
	}
	if !p.stock {
		if l := p.from.Lease(); l.State != handoff.Prepared || l.Target != handoff.Elsewhere {
			return
		}
		p.from.Step(handoff.Event{Kind: handoff.Begin, Node: sourceNode})
	}
	ms.StartTimestamp = &now
	p.begun, p.moving = true, p.podAlive()
}

// hypervisorsSwitch passes the VMI, if both are there.
func (p *clusters) hypervisorsSwitch() {
	if p.moving && p.before == "" && p.podAlive() {
		p.moving, p.at = false, atTarget
	}
}

// sourceNodeEnds reports the end of the migration at the sender: the VMI has left, or it stays.
func (p *clusters) sourceNodeEnds() {
	ms, now := stateIn(p.from), metav1.NewTime(p.from.Now)
	if !p.begun || p.from.VMI.IsFinal() {
		return
	}
	if p.moving && (ms.AbortRequested || !p.podAlive()) {
		p.moving = false
	}
	switch {
	case p.moving:
	case p.at == atTarget:
		if ms.EndTimestamp == nil {
			ms.EndTimestamp = &now
		}
		switch since := now.Sub(ms.EndTimestamp.Time); {
		case ms.Completed && !ms.Failed || migration.Reported(ms):
			p.from.VMI.Status.Phase, ms.Completed = v1.Succeeded, true
			p.end(handoff.Revert, handoff.Release)
		case since > time.Minute: // nothing was heard of the VMI that has left
			p.from.VMI.Status.Phase, ms.Completed, ms.Failed = v1.Failed, true, true
			p.end(handoff.Revert, handoff.Release)
		}
	case p.stays():
		ms.EndTimestamp, ms.Failed, ms.Completed, ms.AbortStatus = &now, true, true, v1.MigrationAbortSucceeded
		p.end(handoff.Revert)
	}
}

// stays reports whether the node has yet to say that the VMI has not moved.
func (p *clusters) stays() bool {
	return !stateIn(p.from).Failed || !p.stock && p.from.Lease().State == handoff.Moving
}

func (p *clusters) end(kinds ...handoff.Kind) {
	for _, k := range kinds {
		if !p.stock && p.from.Lease().State != handoff.Released {
			p.from.Step(handoff.Event{Kind: k, Node: sourceNode})
		}
	}
}

// all are the steps of everybody but the two controllers, in the order of a migration.
func (p *clusters) all() []func() {
	return []func(){
		p.push, p.pull, p.cancel, p.targetPodRuns, p.targetNodeActs, p.sourceNodeBegins, p.hypervisorsSwitch, p.sourceNodeEnds,
	}
}

// round lets everybody act in turn.
func (p *clusters) round() {
	p.from.Pass()
	p.to.Pass()
	for _, do := range p.all() {
		do()
	}
}

// until lets everybody act in turn until that is so.
func (p *clusters) until(so func() bool) {
	p.from.t.Helper()
	for range 30 {
		if so() {
			return
		}
		p.round()
	}
	p.from.t.Fatalf("it does not come to that: sender %q, receiver %q", p.from.Migration.Status.Phase, p.to.Migration.Status.Phase)
}
