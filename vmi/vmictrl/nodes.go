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

// vmiByNode has every guest under the nodes of its lease.
const vmiByNode = "vmictrl.vmiByNode"

// nodes knows which nodes give no sign of life, and wakes the guests of one that
// has fallen silent. A sign of life is a change of the annotation
// kubevirt.io/heartbeat; it is timed by this process's own clock, when it is seen,
// so that no node's clock needs to be right. A process that has just begun knows of
// no silence: it waits for the full time first.
type nodes struct {
	client client.Client
	clock  clock.PassiveClock
	after  time.Duration
	// guests lists those of a node.
	guests func(ctx context.Context, node string) []reconcile.Request
	queue  *backlog.Backlog
	// believes says that the time in a heartbeat counts, for who has not seen it come.
	believes bool

	mu    sync.Mutex
	beats map[string]beat // guarded by mu
}

// beat is the last sign of life of a node and when it was first seen.
type beat struct {
	value string
	seen  time.Time
}

// setup registers the controller that watches the nodes, by their metadata alone.
func (n *nodes) setup(mgr ctrl.Manager, name string) error {
	n.beats = map[string]beat{}
	err := ctrl.NewControllerManagedBy(mgr).Named(name+"-nodes").
		For(&corev1.Node{}, builder.OnlyMetadata, builder.WithPredicates(predicate.AnnotationChangedPredicate{})).
		Complete(n)
	if err != nil {
		return fmt.Errorf("vmictrl: watch nodes: %w", err)
	}
	return nil
}

// Reconcile looks at one node, and again when its next sign of life is overdue.
func (n *nodes) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	heartbeat, _, err := n.heartbeat(ctx, req.Name)
	if err != nil {
		return reconcile.Result{}, err
	}
	if left := n.note(req.Name, heartbeat).Add(n.after).Sub(n.clock.Now()); left > 0 {
		return reconcile.Result{RequeueAfter: left}, nil
	}
	if q := n.queue.Queue(); q != nil {
		for _, g := range n.guests(ctx, req.Name) {
			q.Add(g)
		}
	}
	return reconcile.Result{}, nil
}

// heartbeat reads the node's last sign of life from the cache; one that does not
// exist gives none.
func (n *nodes) heartbeat(ctx context.Context, name string) (value string, exists bool, err error) {
	node := &metav1.PartialObjectMetadata{}
	node.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Node"))
	switch err := n.client.Get(ctx, types.NamespacedName{Name: name}, node); {
	case apierrors.IsNotFound(err):
		return "", false, nil
	case err != nil:
		return "", false, fmt.Errorf("vmictrl: read Node %s: %w", name, err)
	}
	return node.Annotations[v1.VirtHandlerHeartbeat], true, nil
}

// note remembers a sign of life and returns when it was first seen.
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

// silent reports whether the node gives no sign of life, and since when. For a node
// that is not silent yet and of which no event will come, because it does not exist,
// due is when it will be.
func (n *nodes) silent(ctx context.Context, name string) (silent bool, since, due time.Time, err error) {
	heartbeat, exists, err := n.heartbeat(ctx, name)
	if err != nil {
		return false, since, due, err
	}
	since = n.note(name, heartbeat)
	at := since.Add(n.after)
	if silent = !at.After(n.clock.Now()); !silent && !exists {
		due = at
	}
	return silent, since, due, nil
}

// look adds to the snapshot what is known of the nodes of the guest's lease.
func (r *Reconciler) look(ctx context.Context, g *gathered) error {
	lease, err := handoff.Of(g.VMI)
	if err != nil {
		return nil //nolint:nilerr // Decide tells it
	}
	g.Silent = map[string]time.Time{}
	for _, node := range nodesOf(lease) {
		silent, since, due, err := r.nodes.silent(ctx, node)
		if err != nil {
			return err
		}
		if silent {
			g.Silent[node] = since
		}
		if !due.IsZero() {
			g.lookAt(due)
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

// +kubebuilder:rbac:groups="",resources=nodes,verbs=get

// evidence looks for proof that the guest does not run on the silent node: what the
// Fencer says, and what the API server itself says once the lease's time is up.
func (r *Reconciler) evidence(ctx context.Context, g *gathered, l handoff.Lease, node string) (*handoff.Evidence, error) {
	if r.Fencer != nil && !g.dry {
		guest := handoff.Guest{NamespacedName: g.owner.Key, UID: g.VMI.UID, Epoch: l.Epoch}
		e, err := r.Fencer.Fence(ctx, guest, node)
		if err != nil {
			ctrl.LoggerFrom(ctx).Error(err, "Could not fence a silent node", "node", node) // it is asked again
		} else if e != nil {
			return e, nil
		}
	}
	if !l.Overdue(r.Clock.Now()) {
		return nil, nil //nolint:nilnil // none is an answer
	}
	found := &metav1.PartialObjectMetadata{}
	found.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Node"))
	switch err := r.APIReader.Get(ctx, types.NamespacedName{Name: node}, found); {
	case apierrors.IsNotFound(err):
		return &handoff.Evidence{Kind: handoff.NodeGone, Detail: "its Node object does not exist"}, nil
	case err != nil:
		return nil, fmt.Errorf("vmictrl: read Node %s at the API server: %w", node, err)
	case !r.Config.PodHoldsGuest:
		return nil, nil //nolint:nilnil // none is an answer
	}
	return r.podsGone(ctx, g, node)
}

// podsGone tells whether the API server knows of no Pod of the guest on the node that
// has not ended.
func (r *Reconciler) podsGone(ctx context.Context, g *gathered, node string) (*handoff.Evidence, error) {
	pods, err := r.controlledLive(ctx, g)
	if err != nil {
		return nil, err
	}
	for _, p := range pods {
		if p.Spec.NodeName == node && !vmi.PodDown(p) {
			return nil, nil //nolint:nilnil // none is an answer
		}
	}
	return &handoff.Evidence{Kind: handoff.PodGone, Detail: "no Pod of the guest is left there"}, nil
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

// onNode lists the guests of a node.
func (r *Reconciler) onNode(ctx context.Context, node string) []reconcile.Request {
	return r.guests(ctx, client.MatchingFields{vmiByNode: node})
}
