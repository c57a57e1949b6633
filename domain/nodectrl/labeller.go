// SPDX-License-Identifier: Apache-2.0

package nodectrl

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/workqueue"
	v1 "kubevirt.io/api/core/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/template/templatectrl"
)

const (
	// defaultLabels is the shortest time between two passes of a Labeller, as in KubeVirt.
	defaultLabels = 3 * time.Minute
	// defaultRealtimeRuntime is the kernel's limit on the CPU time of realtime tasks.
	defaultRealtimeRuntime = "/proc/sys/kernel/sched_rt_runtime_us"
)

// eventHostModelObsolete is the reason of KubeVirt's event for a node whose own CPU model is
// obsolete.
const eventHostModelObsolete = "HostModelIsObsolete"

// Labeller keeps the node's labels that report its capabilities; see [Labels]. Labels of that kind
// which no longer hold are removed. A pass runs at the start, when the cluster's configuration
// changes, and periodically. A Node with the annotation node-labeller.kubevirt.io/skip-node is left
// as it is.
type Labeller struct {
	// NodeName is the node's name.
	NodeName string
	// Client writes the node and reads KubeVirt objects, from a cache. Node reads the node, without
	// one: a cache would hold all nodes.
	Client client.Client
	Node   client.Reader
	// Capabilities describes the capabilities of the node's hypervisor.
	Capabilities domain.CapabilitiesReader
	// RealtimeRuntime is a file with the kernel's sched_rt_runtime_us. Defaults to
	// /proc/sys/kernel/sched_rt_runtime_us.
	RealtimeRuntime string
	// Every is the shortest time between two passes, the longest is 2.2 times that. Defaults to
	// 3 minutes.
	Every time.Duration
	// Recorder emits events for the node. Defaults to none.
	Recorder events.EventRecorder
	// Random returns numbers from zero up to one; defaults to those of math/rand.
	Random func() float64
}

// SetupWithManager checks the fields and registers the labeller with the manager.
func (l *Labeller) SetupWithManager(mgr ctrl.Manager) error {
	if err := l.complete(); err != nil {
		return err
	}
	every := false // every node's agent labels its own node
	at := reconcile.Request{NamespacedName: types.NamespacedName{Name: l.NodeName}}
	start := source.Func(func(_ context.Context, q workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
		q.Add(at)
		return nil
	})
	changed := handler.EnqueueRequestsFromMapFunc(func(context.Context, client.Object) []reconcile.Request { return []reconcile.Request{at} })
	return ctrl.NewControllerManagedBy(mgr).Named("node-labels").
		WithOptions(controller.Options{NeedLeaderElection: &every}).
		WatchesRawSource(start).
		Watches(&v1.KubeVirt{}, changed, builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		Complete(l)
}

func (l *Labeller) complete() error {
	if l.NodeName == "" || l.Client == nil || l.Node == nil || l.Capabilities == nil {
		return errors.New("nodectrl: Labeller.NodeName, Client, Node and Capabilities are required")
	}
	if l.RealtimeRuntime == "" {
		l.RealtimeRuntime = defaultRealtimeRuntime
	}
	if l.Every == 0 {
		l.Every = defaultLabels
	}
	if l.Random == nil {
		l.Random = rand.Float64
	}
	return nil
}

// +kubebuilder:rbac:groups="",resources=nodes,verbs=get
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch

// Reconcile makes one pass over the node's labels. A hypervisor that does not report its
// capabilities is asked again later.
func (l *Labeller) Reconcile(ctx context.Context, _ reconcile.Request) (reconcile.Result, error) {
	later := reconcile.Result{RequeueAfter: jittered(l.Every, l.Random)}
	node := &corev1.Node{}
	if err := l.Node.Get(ctx, types.NamespacedName{Name: l.NodeName}, node); err != nil {
		return reconcile.Result{}, fmt.Errorf("nodectrl: read node %s: %w", l.NodeName, err)
	}
	if _, skip := node.Annotations[v1.LabellerSkipNodeAnnotation]; skip {
		return later, nil
	}
	want, err := l.labels(ctx)
	if errors.Is(err, domain.ErrUnsupported) {
		return later, nil
	}
	if err != nil {
		return reconcile.Result{}, err
	}
	change := differences(node.Labels, want)
	if len(change) > 0 {
		if err := patchNode(ctx, l.Client, l.NodeName, metadata{Labels: change}); err != nil {
			return reconcile.Result{}, err
		}
		ctrl.LoggerFrom(ctx).V(1).Info("Labelled the node", "changed", len(change))
	}
	if change[v1.NodeHostModelIsObsoleteLabel] != nil && l.Recorder != nil {
		l.Recorder.Eventf(node, nil, corev1.EventTypeWarning, eventHostModelObsolete, "Label",
			"the node's CPU model is obsolete by the KubeVirt object (spec.configuration.obsoleteCPUModels)")
	}
	return later, nil
}

// +kubebuilder:rbac:groups=kubevirt.io,resources=kubevirts,verbs=list;watch

// labels returns the wanted labels of the node.
func (l *Labeller) labels(ctx context.Context) (map[string]string, error) {
	kv, err := (&templatectrl.Gatherer{Client: l.Client}).KubeVirt(ctx)
	if err != nil {
		return nil, fmt.Errorf("nodectrl: %w", err)
	}
	ask, cancel := context.WithTimeout(ctx, askWithin)
	defer cancel()
	f := Facts{}
	if f.Capabilities, err = l.Capabilities.Capabilities(ask); err != nil {
		return nil, fmt.Errorf("nodectrl: read the capabilities of node %s: %w", l.NodeName, err)
	}
	// A kernel without the file limits realtime tasks.
	runtime, err := os.ReadFile(l.RealtimeRuntime)
	f.Realtime = err == nil && strings.TrimSpace(string(runtime)) == "-1"
	return Labels(f, LabelConfigOf(kv))
}

// differences returns the labels to set, and to remove, so that those the labeller owns are as
// wanted.
func differences(have, want map[string]string) map[string]*string {
	change := map[string]*string{}
	for key, value := range want {
		if old, found := have[key]; !found || old != value {
			change[key] = &value
		}
	}
	for key := range have {
		if _, wanted := want[key]; Owned(key) && !wanted {
			change[key] = nil
		}
	}
	return change
}
