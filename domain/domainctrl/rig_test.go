// SPDX-License-Identifier: Apache-2.0

package domainctrl_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/testr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	v1 "kubevirt.io/api/core/v1"
	"libvirt.org/go/libvirtxml"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/domainctrl"
	"github.com/virtloom/virtloom/domain/internal/domainfixture"
	"github.com/virtloom/virtloom/domain/memory"
	"github.com/virtloom/virtloom/domain/transport"
	"github.com/virtloom/virtloom/domain/workspace"
	"github.com/virtloom/virtloom/handoff"
	"github.com/virtloom/virtloom/internal/rig"
	"github.com/virtloom/virtloom/internal/rig/rigtest"
)

// patience bounds waiting for expected events; interval is the polling interval of a test.
const (
	patience = 2 * time.Minute
	interval = 10 * time.Millisecond
)

// cluster is a control plane for nodes whose domains live in memory.
type cluster struct {
	*rig.Rig
	client.Client
	scheme *runtime.Scheme
	names  atomic.Int64
}

func newCluster(t *testing.T) *cluster {
	t.Helper()
	c := &cluster{Rig: rigtest.New(t), scheme: runtime.NewScheme()}
	domainfixture.Must(t, errors.Join(clientgoscheme.AddToScheme(c.scheme), v1.AddToScheme(c.scheme)))
	var err error
	c.Client, err = client.New(c.Config(rig.UserAdmin), client.Options{Scheme: c.scheme})
	domainfixture.Must(t, err)
	return c
}

// node is the part of a node that outlives its agent.
type node struct {
	*memory.Hypervisor
	name string
	port int
	root string
	c    *cluster
	// edit changes the agent before it starts; may be nil.
	edit func(*domainctrl.Reconciler)
}

// pair is two nodes that can migrate to each other, in a namespace of their own.
type pair struct {
	*cluster
	a, b *node
	ns   string
}

func newPair(t *testing.T, c *cluster) *pair {
	t.Helper()
	n := c.names.Add(1)
	p := &pair{cluster: c, ns: fmt.Sprintf("test-%d", n)}
	domainfixture.Must(t, c.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: p.ns}}))
	for i, at := range []**node{&p.a, &p.b} {
		name := fmt.Sprintf("node-%d-%c", n, 'a'+i)
		*at = &node{Hypervisor: memory.New(name), name: name, port: 1000 + i, root: t.TempDir(), c: c}
	}
	p.a.Connect(p.b.uri(), p.b.Hypervisor)
	p.b.Connect(p.a.uri(), p.a.Hypervisor)
	return p
}

func (n *node) uri() string {
	return "qemu+tcp://" + net.JoinHostPort("127.0.0.1", strconv.Itoa(n.port)) + "/system"
}

func (n *node) workspace() *workspace.Workspace {
	return &workspace.Workspace{Root: n.root, Bridge: "br0", AllowEmulation: func(context.Context) (bool, error) { return true, nil }}
}

// agent builds an agent of the node and the manager it runs in.
func (n *node) agent(t *testing.T) (ctrl.Manager, *domainctrl.Reconciler) {
	t.Helper()
	skip := true
	log := logr.Discard()
	if testing.Verbose() {
		log = testr.New(t)
	}
	grace := 2 * domainctrl.DefaultCallTimeout
	mgr, err := ctrl.NewManager(n.c.Config(rig.NodeUser(n.name)), ctrl.Options{
		Scheme: n.c.scheme, Logger: log, Metrics: server.Options{BindAddress: "0"}, GracefulShutdownTimeout: &grace,
		Controller: config.Controller{SkipNameValidation: &skip},
	})
	domainfixture.Must(t, err)
	caches, err := domainctrl.NewCaches(n.c.Config(rig.NodeUser(n.name)), n.c.scheme, n.name)
	domainfixture.Must(t, err)
	r := &domainctrl.Reconciler{
		NodeName: n.name, Transport: transport.Direct{Address: "127.0.0.1", Port: n.port}, Hypervisor: n.Hypervisor, Workspace: n.workspace(),
		Client: mgr.GetClient(), APIReader: mgr.GetAPIReader(), Caches: caches, DrainWithin: -1,
	}
	if n.edit != nil {
		n.edit(r)
	}
	domainfixture.Must(t, r.SetupWithManager(mgr))
	return mgr, r
}

// start runs an agent until stop is called or the test ends.
func (n *node) start(t *testing.T) (stop func()) {
	t.Helper()
	mgr, _ := n.agent(t)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- mgr.Start(ctx) }()
	var stopped atomic.Bool
	stop = func() {
		cancel()
		if stopped.CompareAndSwap(false, true) {
			if err := <-ended; err != nil {
				t.Errorf("agent of %s: %v", n.name, err)
			}
		}
	}
	t.Cleanup(stop)
	return stop
}

// state is the domain of the guest on the node, nil if there is none.
func (n *node) state(vmi *v1.VirtualMachineInstance) *domain.State {
	st, err := n.Get(context.Background(), domain.Name(vmi.Namespace, vmi.Name))
	if err != nil {
		return nil
	}
	return &st
}

func (n *node) running(vmi *v1.VirtualMachineInstance) bool {
	st := n.state(vmi)
	return st != nil && st.Status == domain.StatusRunning
}

// empty reports whether neither domain nor file of the VMI is on the node.
func (n *node) empty(vmi *v1.VirtualMachineInstance) bool {
	_, err := os.Stat(n.workspace().Dir(vmi.UID))
	owners, ownersErr := n.workspace().Owners()
	_, owned := owners[vmi.UID]
	return n.state(vmi) == nil && os.IsNotExist(err) && ownersErr == nil && !owned
}

// create creates a VMI that waits to be offered.
func (p *pair) create(t *testing.T, name string) *v1.VirtualMachineInstance {
	t.Helper()
	size := resource.MustParse("64Mi")
	grace := int64(1)
	off := false
	vmi := &v1.VirtualMachineInstance{
		ObjectMeta: metav1.ObjectMeta{Namespace: p.ns, Name: name, Finalizers: []string{v1.VirtualMachineInstanceFinalizer}},
		Spec: v1.VirtualMachineInstanceSpec{
			TerminationGracePeriodSeconds: &grace,
			Domain: v1.DomainSpec{
				Memory: &v1.Memory{Guest: &size},
				Devices: v1.Devices{AutoattachGraphicsDevice: &off, AutoattachSerialConsole: &off,
					Disks: []v1.Disk{{Name: "seed", DiskDevice: v1.DiskDevice{Disk: &v1.DiskTarget{Bus: v1.DiskBusVirtio}}}}},
			},
			Volumes: []v1.Volume{{Name: "seed", VolumeSource: v1.VolumeSource{CloudInitNoCloud: &v1.CloudInitNoCloudSource{UserData: "user"}}}},
		},
	}
	domainfixture.Must(t, p.Client.Create(t.Context(), vmi))
	t.Cleanup(func() { domainfixture.Must(t, p.remove(context.Background(), vmi)) })
	return vmi
}

// remove makes the object go at once.
func (p *pair) remove(ctx context.Context, vmi *v1.VirtualMachineInstance) error {
	gone := &v1.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{Namespace: vmi.Namespace, Name: vmi.Name}}
	drop := client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`))
	if err := p.Patch(ctx, gone, drop); err != nil {
		return client.IgnoreNotFound(err)
	}
	return client.IgnoreNotFound(p.Delete(ctx, gone))
}

// change edits the stored object until it is stored, as a controller would.
func (p *pair) change(t *testing.T, vmi *v1.VirtualMachineInstance, edit func(*v1.VirtualMachineInstance, handoff.Lease) error) {
	t.Helper()
	domainfixture.Must(t, wait.PollUntilContextTimeout(t.Context(), interval, patience, true, func(ctx context.Context) (bool, error) {
		if err := p.Get(ctx, client.ObjectKeyFromObject(vmi), vmi); err != nil {
			return false, err
		}
		l, err := handoff.Of(vmi)
		if err != nil {
			return false, err
		}
		base := vmi.DeepCopy()
		if err := edit(vmi, l); err != nil {
			return false, err
		}
		err = p.Patch(ctx, vmi, client.MergeFromWithOptions(base, client.MergeFromWithOptimisticLock{}))
		return err == nil, ignoreConflict(err)
	}))
}

// step changes the lease by an event of the controller.
func (p *pair) step(t *testing.T, vmi *v1.VirtualMachineInstance, e handoff.Event, edit func(*v1.VirtualMachineInstance)) {
	t.Helper()
	switch e.Kind {
	case handoff.Offer:
		p.launcherPod(t, vmi, e.Node, "")
	case handoff.Prepare:
		p.launcherPod(t, vmi, e.Node, e.Tag)
	}
	p.change(t, vmi, func(vmi *v1.VirtualMachineInstance, l handoff.Lease) error {
		e.Epoch = l.Epoch
		l, _, err := handoff.Step(l, e, time.Now())
		if err != nil {
			return err
		}
		if vmi.Labels == nil {
			vmi.Labels = map[string]string{}
		}
		edit(vmi)
		return handoff.Put(vmi, l)
	})
}

// launcherPod makes the VMI's Pod on a node, as the controller does for its start or a migration;
// of one kind there is one at a time.
func (p *pair) launcherPod(t *testing.T, vmi *v1.VirtualMachineInstance, node string, job types.UID) *corev1.Pod {
	t.Helper()
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: vmi.Namespace, GenerateName: "virt-launcher-" + vmi.Name + "-",
			Labels:          map[string]string{v1.AppLabel: "virt-launcher", v1.CreatedByLabel: string(vmi.UID)},
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(vmi, v1.VirtualMachineInstanceGroupVersionKind)},
		},
		Spec: corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Name: "compute", Image: "none"}}},
	}
	if job != "" {
		pod.Labels[v1.MigrationJobLabel] = string(job)
	}
	domainfixture.Must(t, p.Client.Create(t.Context(), pod))
	return pod
}

// offer offers the VMI to the node.
func (p *pair) offer(t *testing.T, vmi *v1.VirtualMachineInstance, n *node) {
	t.Helper()
	p.step(t, vmi, handoff.Event{Kind: handoff.Offer, Node: n.name}, func(vmi *v1.VirtualMachineInstance) { placeOn(vmi, n) })
}

func placeOn(vmi *v1.VirtualMachineInstance, n *node) {
	if vmi.Labels == nil {
		vmi.Labels = map[string]string{}
	}
	vmi.Labels[v1.NodeNameLabel], vmi.Status.NodeName, vmi.Status.Phase = n.name, n.name, v1.Scheduled
}

// move requests a migration.
func (p *pair) move(t *testing.T, vmi *v1.VirtualMachineInstance, to *node, uid types.UID) {
	t.Helper()
	p.step(t, vmi, handoff.Event{Kind: handoff.Prepare, Node: to.name, Tag: uid}, func(vmi *v1.VirtualMachineInstance) { askToMove(vmi, to, uid) })
}

func askToMove(vmi *v1.VirtualMachineInstance, to *node, uid types.UID) {
	vmi.Labels[v1.MigrationTargetNodeNameLabel] = to.name
	vmi.Status.MigrationState = &v1.VirtualMachineInstanceMigrationState{MigrationUID: uid, SourceNode: vmi.Status.NodeName, TargetNode: to.name}
}

// until reads the VMI until the condition holds.
func (p *pair) until(t *testing.T, what string, vmi *v1.VirtualMachineInstance, ok func(handoff.Lease) bool) {
	t.Helper()
	err := wait.PollUntilContextTimeout(t.Context(), interval, patience, true, func(ctx context.Context) (bool, error) {
		if err := p.Get(ctx, client.ObjectKeyFromObject(vmi), vmi); err != nil {
			return false, err
		}
		l, err := handoff.Of(vmi)
		return err == nil && ok(l), nil
	})
	if err != nil {
		t.Fatalf("waiting for %s: %v; the guest is %s, %v; a: %+v; b: %+v", what, err, vmi.Status.Phase, vmi.Annotations, p.a.state(vmi), p.b.state(vmi))
	}
}

// eventually waits for a condition that the API does not show.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	err := wait.PollUntilContextTimeout(t.Context(), interval, patience, true, func(context.Context) (bool, error) { return ok(), nil })
	if err != nil {
		t.Fatalf("waiting for %s: %v", what, err)
	}
}

// runsOn waits until the node owns and runs the VMI, and reports it.
func (p *pair) runsOn(t *testing.T, vmi *v1.VirtualMachineInstance, n *node) {
	t.Helper()
	p.until(t, "the guest to run on "+n.name, vmi, func(l handoff.Lease) bool {
		return l.State == handoff.Owned && l.Holder == n.name && vmi.Status.Phase == v1.Running && vmi.Status.NodeName == n.name && n.running(vmi)
	})
}

// finish deletes the VMI and waits until nothing of it is left.
func (p *pair) finish(t *testing.T, vmi *v1.VirtualMachineInstance) {
	t.Helper()
	domainfixture.Must(t, p.Delete(t.Context(), vmi.DeepCopy()))
	p.until(t, "the guest to end", vmi, func(l handoff.Lease) bool { return l.State == handoff.Released && vmi.IsFinal() })
	domainfixture.Must(t, p.remove(t.Context(), vmi))
	eventually(t, "nothing to be left on the nodes", func() bool { return p.a.empty(vmi) && p.b.empty(vmi) })
}

func ignoreConflict(err error) error {
	if apierrors.IsConflict(err) {
		return nil
	}
	return err
}

func (p *pair) get(t *testing.T, vmi *v1.VirtualMachineInstance) {
	t.Helper()
	domainfixture.Must(t, p.Get(t.Context(), client.ObjectKeyFromObject(vmi), vmi))
}

// minimal is a domain without an owner.
func minimal(name string) *libvirtxml.Domain {
	return &libvirtxml.Domain{Type: "qemu", Name: name, UUID: "5f0c6c9a-9d0d-4f5e-8f1e-000000000001"}
}

// recorder keeps the notes of events.
type recorder struct{ notes chan string }

func (r *recorder) Eventf(_, _ runtime.Object, _, reason, action, note string, args ...any) {
	select {
	case r.notes <- reason + " " + action + " " + fmt.Sprintf(note, args...):
	default:
	}
}
