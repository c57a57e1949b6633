// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	v1 "kubevirt.io/api/core/v1"
	migrationsv1 "kubevirt.io/api/migrations/v1alpha1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/virtloom/virtloom/expectations/expectationsctrl"
	"github.com/virtloom/virtloom/internal/memapi"
	"github.com/virtloom/virtloom/migration/migrationctrl"
	"github.com/virtloom/virtloom/vmi/vmictrl"
)

const (
	namespace = "soak"
	image     = "example.test/virt-launcher:1"
	// userName and clusterName are who users and the rest of the cluster are to the API server.
	userName    = "users"
	clusterName = "cluster"
	claimBytes  = 4 << 20
	// stepsKept is the number of last steps that a failure prints.
	stepsKept = 60
)

// Options say what a simulated soak is like.
type Options struct {
	// Seed says what happens.
	Seed uint64
	// Nodes and Guests are how many there are; of guests at most.
	Nodes, Guests int
	// Pause is the mean time between two operations, FaultPause between two faults.
	Pause, FaultPause time.Duration
	// Dir is an empty folder.
	Dir string
	// Log logs each step; nil logs nothing.
	Log func(format string, args ...any)
	// Debug has the log of all daemons.
	Debug logr.Logger
}

// World is a cluster in a bubble of testing/synctest. Make one with [NewWorld].
type World struct {
	o      Options
	scheme *runtime.Scheme
	api    *memapi.Server
	user   *User
	admin  client.Client
	nodes  []*node
	ctl    *controller
	rest   *cluster
	// others are processes that were killed and may not have ended yet.
	others []*process
	made   int
	// busy says that something was written since the cluster has looked.
	busy atomic.Bool
	// end ends what runs beside the daemons, beside waits for it.
	end    context.CancelFunc
	beside sync.WaitGroup
	failed chan error

	journal
	fates fates
	watch invariants
	ops   int
	// chance decides what is done and what goes wrong, for the goroutine of Run alone.
	chance
	// faulted is how often what went wrong.
	faulted map[string]int
}

// controller is a process of the controller.
type controller struct {
	*process
	registry *prometheus.Registry
}

func newScheme() (*runtime.Scheme, error) {
	s := runtime.NewScheme()
	return s, errors.Join(clientgoscheme.AddToScheme(s), v1.AddToScheme(s), migrationsv1.AddToScheme(s))
}

func quantity(s string) resource.Quantity { return resource.MustParse(s) }

// NewWorld starts a cluster.
func NewWorld(ctx context.Context, o Options) (*World, error) {
	w := &World{
		o: o, journal: journal{begun: time.Now(), log: o.Log}, fates: fates{rnd: rand.New(rand.NewPCG(o.Seed, 1))},
		chance: newChance(o.Seed, 3), failed: make(chan error, 1), faulted: map[string]int{},
	}
	w.watch.init(w)
	var err error
	if w.scheme, err = newScheme(); err != nil {
		return nil, err
	}
	w.api = memapi.NewServer(kinds(), w.wrote)
	if w.admin, err = w.client(userName); err != nil {
		return nil, err
	}
	w.rest = &cluster{w: w}
	if w.rest.Client, err = w.client(clusterName); err != nil {
		return nil, err
	}
	for i := range o.Nodes {
		w.nodes = append(w.nodes, newNode(fmt.Sprintf("node-%d", i), i, o.Dir))
	}
	connect(w.nodes)
	w.user = &User{Client: w.admin, Namespace: namespace, Random: rand.New(rand.NewPCG(o.Seed, 2)), Guests: o.Guests, Resizes: true}
	if err := w.furnish(ctx); err != nil {
		return nil, err
	}
	runCtx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	w.end = cancel
	w.beside.Go(func() {
		if err := w.rest.run(runCtx); err != nil {
			w.fail(fmt.Errorf("cluster: %w", err))
		}
	})
	err = w.startController()
	for _, n := range w.nodes {
		err = errors.Join(err, w.startAgent(n))
	}
	return w, err
}

func (w *World) client(name string) (client.Client, error) {
	return client.New(w.api.Access(name).Config(), client.Options{Scheme: w.scheme})
}

// furniture returns what a cluster has besides guests: the user gets claims, with folders below dir, which volumes completes.
func furniture(dir string, u *User, volumes func(c *corev1.PersistentVolumeClaim, folder string) []client.Object) ([]client.Object, error) {
	kv := &v1.KubeVirt{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "kubevirt"}}
	kv.Spec.WorkloadUpdateStrategy.WorkloadUpdateMethods = []v1.WorkloadUpdateMethod{v1.WorkloadUpdateMethodLiveMigrate}
	kv.Spec.Configuration.DeveloperConfiguration = &v1.DeveloperConfiguration{UseEmulation: true}
	objects := []client.Object{&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}, kv}
	for i := range 3 {
		name := fmt.Sprintf("data-%d", i)
		u.Claims = append(u.Claims, name)
		folder := filepath.Join(dir, "claims", name)
		err := errors.Join(os.MkdirAll(folder, 0o700), os.WriteFile(filepath.Join(folder, "disk.img"), make([]byte, claimBytes), 0o600))
		if err != nil {
			return nil, err
		}
		c := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
		c.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany}
		c.Spec.Resources.Requests = corev1.ResourceList{corev1.ResourceStorage: quantity("4Mi")}
		objects = append(objects, volumes(c, folder)...)
	}
	return objects, nil
}

// furnish creates what a cluster has besides guests.
func (w *World) furnish(ctx context.Context) error {
	objects, err := furniture(w.o.Dir, w.user, func(c *corev1.PersistentVolumeClaim, _ string) []client.Object {
		c.Spec.VolumeMode, c.Spec.VolumeName = ptr.To(corev1.PersistentVolumeFilesystem), "pv-"+c.Name
		return []client.Object{c}
	})
	if err != nil {
		return err
	}
	for _, o := range objects {
		if err := w.admin.Create(ctx, o); err != nil {
			return err
		}
		if c, is := o.(*corev1.PersistentVolumeClaim); is {
			was := c.DeepCopy()
			c.Status.Phase, c.Status.AccessModes, c.Status.Capacity = corev1.ClaimBound, c.Spec.AccessModes, c.Spec.Resources.Requests
			if err := w.admin.Status().Patch(ctx, c, client.MergeFrom(was)); err != nil {
				return err
			}
		}
	}
	for _, n := range w.nodes {
		if err := w.rest.register(ctx, n); err != nil {
			return err
		}
	}
	return nil
}

func newManager(c *rest.Config, scheme *runtime.Scheme) (ctrl.Manager, error) {
	return ctrl.NewManager(c, ctrl.Options{
		Scheme: scheme, Metrics: server.Options{BindAddress: "0"}, Controller: config.Controller{SkipNameValidation: ptr.To(true)},
	})
}

// access is a new process's way to the API server.
func (w *World) access(name string) *memapi.Access {
	w.made++
	a := w.api.Access(fmt.Sprintf("%s#%d", name, w.made))
	a.SetFaults(&memapi.Faults{Request: w.fates.request, Event: w.fates.event})
	return a
}

// startTries is how often a process that does not come up is started, startPause the time between.
const (
	startTries = 20
	startPause = 3 * time.Second
)

// tried starts a process until it comes up, as a kubelet does.
func (w *World) tried(what string, start func() error) error {
	var err error
	for range startTries {
		if err = start(); err == nil {
			return nil
		}
		w.note("%s did not come up: %v", what, err)
		time.Sleep(startPause)
	}
	return fmt.Errorf("start %s: %w", what, err)
}

// revive starts processes again that have ended by themselves.
func (w *World) revive() error {
	var err error
	if w.ctl != nil && w.ctl.over() {
		w.note("the controller has ended: %v", w.ctl.err)
		w.faulted["the controller ended"]++
		err = w.startController()
	}
	for _, n := range w.nodes {
		if n.agent != nil && n.agent.over() {
			w.note("the agent of %s has ended: %v", n.name, n.agent.err)
			w.faulted["an agent ended"]++
			err = errors.Join(err, w.startAgent(n))
		}
	}
	return err
}

// startController runs a controller as refdaemon controller does.
func (w *World) startController() error { return w.tried("the controller", w.tryController) }

func (w *World) tryController() error {
	access := w.access("controller")
	mgr, err := newManager(access.Config(), w.scheme)
	if err != nil {
		return err
	}
	ctx, c := context.Background(), &controller{registry: prometheus.NewRegistry()}
	writes := func(name string) *expectationsctrl.Metrics {
		m := expectationsctrl.NewMetrics(name)
		c.registry.MustRegister(m)
		return m
	}
	guests, moves := vmictrl.NewMetrics(), migrationctrl.NewMetrics()
	c.registry.MustRegister(guests, moves)
	r := &vmictrl.Reconciler{
		Client: mgr.GetClient(), APIReader: mgr.GetAPIReader(), LauncherImage: image, Observer: writes("vmi"), Metrics: guests,
		Recorder: mgr.GetEventRecorder("virtualmachine-controller"),
	}
	if err := r.SetupWithManager(ctx, mgr); err != nil {
		return err
	}
	m := &migrationctrl.Reconciler{
		Client: mgr.GetClient(), APIReader: mgr.GetAPIReader(), LauncherImage: image, Observer: writes("migration"), Metrics: moves,
		Recorder: mgr.GetEventRecorder("virtualmachine-migration-controller"),
	}
	if err := m.SetupWithManager(ctx, mgr); err != nil {
		return err
	}
	err = errors.Join((&migrationctrl.Evacuator{Migrations: m, Observer: writes("evacuation")}).SetupWithManager(ctx, mgr),
		(&migrationctrl.Updater{Migrations: m, Observer: writes("workload-update")}).SetupWithManager(ctx, mgr))
	if err != nil {
		return err
	}
	c.process = begin(access, mgr)
	w.ctl = c
	return nil
}

func (w *World) startAgent(n *node) error {
	return w.tried("the agent of "+n.name, func() error {
		access := w.access(n.name)
		return n.start(access, access.Config(), w.scheme, rand.New(rand.NewPCG(w.o.Seed, uint64(100+w.made))))
	})
}

func (w *World) node(name string) *node {
	for _, n := range w.nodes {
		if n.name == name {
			return n
		}
	}
	return nil
}

// fail ends the soak.
func (w *World) fail(err error) {
	select {
	case w.failed <- err:
	default: // it has failed already
	}
}

// journal has the last steps, for those who want to know how a failure came about.
type journal struct {
	begun time.Time
	log   func(format string, args ...any) // nil logs nothing

	mu    sync.Mutex
	steps []string
}

// note keeps a step.
func (j *journal) note(format string, args ...any) {
	line := fmt.Sprintf("%s %s", time.Since(j.begun).Round(time.Millisecond), fmt.Sprintf(format, args...))
	j.mu.Lock()
	if j.steps = append(j.steps, line); len(j.steps) > stepsKept {
		j.steps = j.steps[1:]
	}
	j.mu.Unlock()
	if j.log != nil {
		j.log("%s", line)
	}
}

func (j *journal) forget() {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.steps = nil
}

// Steps are the last steps.
func (j *journal) Steps() []string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return append([]string(nil), j.steps...)
}

// Close ends everything and waits for it.
func (w *World) Close() error {
	w.end()
	var all []error
	for _, n := range w.nodes {
		if n.agent != nil {
			w.others = append(w.others, n.agent)
		}
	}
	if w.ctl != nil {
		w.others = append(w.others, w.ctl.process)
	}
	for _, p := range w.others {
		p.kill()
		<-p.ended
		all = append(all, p.err)
	}
	w.beside.Wait()
	for _, n := range w.nodes {
		all = append(all, n.hypervisor.Close())
	}
	return errors.Join(all...)
}
