// SPDX-License-Identifier: Apache-2.0

package migrationctrl

import (
	"context"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/events"
	clocktesting "k8s.io/utils/clock/testing"
	v1 "kubevirt.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/virtloom/virtloom/expectations/expectationsctrl"
)

// start is when scenes begin.
var start = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

// scene has what the controllers of automatic migrations need, without a manager: writes are observed at once.
type scene struct {
	client.Client
	automatic
	clock    *clocktesting.FakePassiveClock
	recorded *events.FakeRecorder
}

// GetClient implements expectationsctrl.Cluster, as do the next two.
func (s *scene) GetClient() client.Client    { return s.Client }
func (s *scene) GetAPIReader() client.Reader { return s.Client }
func (s *scene) GetCache() cache.Cache       { return seen{client: s.Client} }

// seen is the part of a cache that a gate reads.
type seen struct {
	cache.Cache
	client client.Client
}

func (s seen) Get(ctx context.Context, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
	return s.client.Get(ctx, key, o, opts...)
}

// indexer gives a client under construction its indexes.
type indexer struct{ *fake.ClientBuilder }

func (i indexer) IndexField(_ context.Context, o client.Object, field string, by client.IndexerFunc) error {
	i.WithIndex(o, field, by)
	return nil
}

// newScene has a server with objects, and with faults.
func newScene(t *testing.T, faults interceptor.Funcs, objects ...client.Object) *scene {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, v1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	b := fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).WithInterceptorFuncs(faults)
	s := &scene{clock: clocktesting.NewFakePassiveClock(start), recorded: events.NewFakeRecorder(100)}
	r := &Reconciler{LauncherImage: "image", Clock: s.clock, Recorder: s.recorded}
	for _, err := range []error{
		index(t.Context(), indexer{b}), indexEvacuations(t.Context(), indexer{b}),
		(&Updater{automatic: automatic{r: r}}).index(t.Context(), indexer{b}),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	s.Client = b.Build()
	r.Client, r.APIReader = s.Client, s.Client
	if err := r.complete(); err != nil {
		t.Fatal(err)
	}
	var err error
	if r.gate, err = expectationsctrl.NewGate(s, expectationsctrl.Options{Clock: s.clock}); err != nil {
		t.Fatal(err)
	}
	if s.automatic, err = newAutomatic(s, r, nil); err != nil {
		t.Fatal(err)
	}
	return s
}

// drained is a node that its VMIs must leave.
func drained(name string) *corev1.Node {
	n := &corev1.Node{}
	n.Name = name
	n.Spec.Taints = []corev1.Taint{{Key: "kubevirt.io/drain", Effect: corev1.TaintEffectNoSchedule}}
	return n
}

// leaving is a VMI on a node.
func leaving(name, node string) *v1.VirtualMachineInstance {
	strategy := v1.EvictionStrategyLiveMigrate
	vmi := &v1.VirtualMachineInstance{}
	vmi.Namespace, vmi.Name, vmi.UID = "ns", name, types.UID("uid-"+name)
	vmi.Spec.EvictionStrategy = &strategy
	vmi.Status.Phase, vmi.Status.NodeName = v1.Running, node
	vmi.Status.Conditions = []v1.VirtualMachineInstanceCondition{{Type: v1.VirtualMachineInstanceIsMigratable, Status: corev1.ConditionTrue}}
	return vmi
}
