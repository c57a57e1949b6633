// SPDX-License-Identifier: Apache-2.0

package vmictrl

import (
	"context"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	v1 "kubevirt.io/api/core/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/virtloom/virtloom/handoff"
	"github.com/virtloom/virtloom/internal/backlog"
	"github.com/virtloom/virtloom/vmi"
)

// vmiByNode indexes VMIs by the nodes of their lease.
const vmiByNode = "vmictrl.vmiByNode"

// nodes detects unresponsive nodes, and enqueues the VMIs of a node that becomes
// unresponsive. A heartbeat is a change of the annotation kubevirt.io/heartbeat; it is timed
// by this process's clock when it is observed, so that no node's clock needs to be right. A
// new process considers no node unresponsive: it waits for the full time first.
type nodes struct {
	client client.Client
	clock  clock.PassiveClock
	after  time.Duration
	// guests lists the VMIs of a node.
	vmis  func(ctx context.Context, node string) []reconcile.Request
	queue *backlog.Backlog
	// believes is true if the time in a heartbeat counts, for an observer that did not see it arrive.
	believes bool
	// closes is the time without a heartbeat after which a node is marked unschedulable; zero disables that.
	closes time.Duration
	// recorder emits events for nodes marked unschedulable; it may be nil.
	recorder events.EventRecorder

	mu    sync.Mutex
	beats map[string]beat // guarded by mu
}

// beat is the last heartbeat of a node and when it was first observed.
type beat struct {
	value string
	seen  time.Time
}

// nodeGatherer reads what there is to know of nodes.
type nodeGatherer struct{ *Reconciler }

// setup registers the controller that watches the nodes, by their metadata alone.
func (n *nodes) setup(mgr ctrl.Manager, name string) error {
	n.beats = map[string]beat{}
	err := ctrl.NewControllerManagedBy(mgr).Named(name+"-nodes").
		For(&corev1.Node{}, builder.OnlyMetadata, builder.WithPredicates(predicate.Or(
			predicate.AnnotationChangedPredicate{}, predicate.LabelChangedPredicate{}))).
		Complete(n)
	if err != nil {
		return fmt.Errorf("vmictrl: watch nodes: %w", err)
	}
	return nil
}

// Reconcile checks one node, and again when its next heartbeat is overdue.
func (n *nodes) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	node, err := n.read(ctx, req.Name)
	if err != nil {
		return reconcile.Result{}, err
	}
	soon, failed := n.close(ctx, node)
	left := n.note(req.Name, beatOf(node)).Add(n.after).Sub(n.clock.Now())
	switch {
	case left > 0 && failed != nil:
		return reconcile.Result{}, failed
	case left > 0 && soon > 0:
		return reconcile.Result{RequeueAfter: min(left, soon)}, nil
	case left > 0:
		return reconcile.Result{RequeueAfter: left}, nil
	}
	if q := n.queue.Queue(); q != nil {
		for _, g := range n.vmis(ctx, req.Name) {
			q.Add(g)
		}
	}
	return reconcile.Result{}, failed
}

// read reads the node's metadata from the cache; nil if it does not exist.
func (n *nodes) read(ctx context.Context, name string) (*metav1.PartialObjectMetadata, error) {
	return readNode(ctx, n.client, name)
}

func readNode(ctx context.Context, c client.Reader, name string) (*metav1.PartialObjectMetadata, error) {
	node := &metav1.PartialObjectMetadata{}
	node.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Node"))
	switch err := c.Get(ctx, types.NamespacedName{Name: name}, node); {
	case apierrors.IsNotFound(err):
		return nil, nil //nolint:nilnil // absence is an answer
	case err != nil:
		return nil, fmt.Errorf("vmictrl: read Node %s: %w", name, err)
	}
	return node, nil
}

// beatOf returns the node's last heartbeat; empty if the node does not exist.
func beatOf(node *metav1.PartialObjectMetadata) string {
	if node == nil {
		return ""
	}
	return node.Annotations[v1.VirtHandlerHeartbeat]
}

// stock reports whether the last heartbeat of the node is from stock virt-handler.
func stock(node *metav1.PartialObjectMetadata) bool {
	beat := beatOf(node)
	return beat != "" && node.Annotations[handoff.HeartbeatAnnotation] != beat
}

// note records a heartbeat and returns when it was first observed.
func (n *nodes) note(name, heartbeat string) time.Time {
	n.mu.Lock()
	defer n.mu.Unlock()
	b, known := n.beats[name]
	if !known || heartbeat != "" && heartbeat != b.value {
		b = beat{value: heartbeat, seen: n.clock.Now()}
		if at, said := beaten(heartbeat, b.seen); said && n.believes {
			b.seen = at
		}
		n.beats[name] = b
	}
	return b.seen
}

// silent reports whether the node is unresponsive, and since when. For a responsive node
// without further events, because it does not exist, due is when it will be unresponsive.
func (n *nodes) silent(name string, node *metav1.PartialObjectMetadata) (silent bool, since, due time.Time) {
	since = n.note(name, beatOf(node))
	at := since.Add(n.after)
	if silent = !at.After(n.clock.Now()); !silent && node == nil {
		due = at
	}
	return silent, since, due
}

// look adds the state of the nodes of the VMI's lease to the snapshot.
func (r nodeGatherer) look(ctx context.Context, g *gathered) error {
	lease, err := handoff.Of(g.VMI)
	if err != nil {
		return nil //nolint:nilerr // Decide reports it
	}
	g.Silent, g.Stock = map[string]time.Time{}, map[string]bool{}
	for _, name := range nodesOf(lease) {
		node, err := r.nodes.read(ctx, name)
		if err != nil {
			return err
		}
		silent, since, due := r.nodes.silent(name, node)
		if silent {
			g.Silent[name] = since
		}
		if !due.IsZero() {
			g.lookAt(due)
		}
		if g.Stock[name], err = r.stock(ctx, lease, name, node); err != nil {
			return err
		}
	}
	g.Evidence = map[string]handoff.Evidence{}
	for _, node := range g.NeedsEvidence() {
		e, err := r.evidence(ctx, g, lease, node)
		if err != nil {
			return err
		}
		if e != nil {
			g.Evidence[node] = *e
		}
	}
	return nil
}

// stock reports whether stock virt-handler reports for the node. Before an overdue offer is withdrawn, the API server is
// queried: according to the cache the node may have had another agent.
func (r nodeGatherer) stock(ctx context.Context, l handoff.Lease, name string, node *metav1.PartialObjectMetadata) (bool, error) {
	if l.State != handoff.Offered || l.Deadline == nil || !l.Overdue(r.Clock.Now()) || stock(node) {
		return stock(node), nil
	}
	live, err := readNode(ctx, r.APIReader, name)
	return stock(live), err
}

// +kubebuilder:rbac:groups="",resources=nodes,verbs=get

// evidence returns proof that the domain does not run on the unresponsive node: from the Fencer,
// and from the API server once the lease has expired.
func (r nodeGatherer) evidence(ctx context.Context, g *gathered, l handoff.Lease, node string) (*handoff.Evidence, error) {
	if g.StockAgent() {
		return r.podsGone(ctx, g, node)
	}
	if r.Fencer != nil && !g.dry {
		guest := handoff.Guest{NamespacedName: g.owner.Key, UID: g.VMI.UID, Epoch: l.Epoch}
		e, err := r.Fencer.Fence(ctx, guest, node)
		if err != nil {
			ctrl.LoggerFrom(ctx).Error(err, "Fencing unresponsive node failed, requeueing", "node", node)
		} else if e != nil {
			return e, nil
		}
	}
	if !l.Overdue(r.Clock.Now()) {
		return nil, nil //nolint:nilnil // none is an answer
	}
	switch live, err := readNode(ctx, r.APIReader, node); {
	case err != nil:
		return nil, err // a failed read is no evidence
	case live == nil:
		return &handoff.Evidence{Kind: handoff.NodeGone, Detail: "its Node object does not exist"}, nil
	case !r.Config.PodHoldsDomain:
		return nil, nil //nolint:nilnil // none is an answer
	}
	return r.podsGone(ctx, g, node)
}

// podsGone returns evidence if the API server has no unfinished Pod of the VMI on the node.
func (r nodeGatherer) podsGone(ctx context.Context, g *gathered, node string) (*handoff.Evidence, error) {
	pods, err := gatherer(r).controlledLive(ctx, g)
	if err != nil {
		return nil, err
	}
	for _, p := range pods {
		if p.Spec.NodeName == node && !vmi.PodDown(p) {
			return nil, nil //nolint:nilnil // none is an answer
		}
	}
	return &handoff.Evidence{Kind: handoff.PodGone, Detail: "the node has no Pod of the VirtualMachineInstance"}, nil
}

// nodesOf returns the nodes that a lease names.
func nodesOf(l handoff.Lease) []string {
	var names []string
	for _, n := range []string{l.Holder, l.Target} {
		if n != "" && n != handoff.Elsewhere {
			names = append(names, n)
		}
	}
	return names
}

// leasedTo is the index function of vmiByNode.
func leasedTo(o client.Object) []string {
	l, err := handoff.Of(o.(*v1.VirtualMachineInstance))
	if err != nil {
		return nil
	}
	return nodesOf(l)
}

// onNode lists the VMIs of a node.
func (r nodeGatherer) onNode(ctx context.Context, node string) []reconcile.Request {
	return watcher(r).vmis(ctx, client.MatchingFields{vmiByNode: node})
}
