// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"
	v1 "kubevirt.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/virtloom/virtloom/internal/rig"
)

// Times of the real soak.
const (
	// realRest is how long everything may take to come to rest, realLook how often that is looked at.
	realRest = 5 * time.Minute
	realLook = 2 * time.Second
	// realBeat is how often nodes give a sign of life, realSilent after how long without one they count as lost.
	realBeat   = 15 * time.Second
	realSilent = time.Minute
	// killing is the part of the time in which controllers are killed: after that one has to live on, or it would not
	// show what it leaks.
	killing = 0.2
)

// RealOptions say what a real soak is like.
type RealOptions struct {
	// Seed says what is done and what goes wrong.
	Seed uint64
	// Duration is for how long, Window from one rest to the next.
	Duration, Window time.Duration
	// Nodes and Guests are how many there are; of guests at most.
	Nodes, Guests int
	// Pause is the mean time between two operations, FaultPause between two faults.
	Pause, FaultPause time.Duration
	// Daemon is the path of refdaemon.
	Daemon string
	// Log logs each step.
	Log func(format string, args ...any)
}

// Real is a control plane of real programs with the daemon as a process and an agent of each node, whose guests live
// in memory, in this one.
type Real struct {
	o      RealOptions
	dir    string
	rig    *rig.Rig
	scheme *runtime.Scheme
	admin  client.Client
	user   *User
	nodes  []*node
	daemon *daemon
	chance
	begun time.Time
	ops   int
	// lives is how many controllers there were.
	lives   int
	faulted map[string]int
	undo    []later
}

// NewReal starts everything.
func NewReal(ctx context.Context, o RealOptions) (_ *Real, err error) {
	r := &Real{o: o, chance: newChance(o.Seed, 1), faulted: map[string]int{}}
	if r.dir, err = os.MkdirTemp("", "virtloom-soak-"); err != nil {
		return nil, err
	}
	r.rig, err = rig.Start(ctx, rig.Options{
		SimulatedNodes: o.Nodes, LeanAudit: true,
		SimulatedNode: rig.NodeSpec{Labels: map[string]string{v1.CPUModelLabel + "qemu64": "true"}},
	})
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(r.dir))
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, r.Close(context.WithoutCancel(ctx)))
		}
	}()
	if r.scheme, err = newScheme(); err != nil {
		return nil, err
	}
	if r.admin, err = client.New(r.rig.Config(rig.UserAdmin), client.Options{Scheme: r.scheme}); err != nil {
		return nil, err
	}
	r.user = &User{Client: r.admin, Namespace: namespace, Random: rand.New(rand.NewPCG(o.Seed, 2)), Guests: o.Guests, Resizes: true}
	if err := r.furnish(ctx); err != nil {
		return nil, err
	}
	for i := range o.Nodes {
		n := newNode(fmt.Sprintf("sim-%d", i), i, r.dir)
		n.beat = realBeat
		n.hypervisor.MigrationTakes(2 * time.Second)
		r.nodes = append(r.nodes, n)
	}
	connect(r.nodes)
	for _, n := range r.nodes {
		if err := r.startAgent(n); err != nil {
			return nil, err
		}
	}
	r.begun = time.Now()
	return r, r.startDaemon(ctx)
}

// furnish creates what a cluster has besides guests.
func (r *Real) furnish(ctx context.Context) error {
	objects, err := furniture(r.dir, r.user, func(c *corev1.PersistentVolumeClaim, folder string) []client.Object {
		c.Spec.StorageClassName = ptr.To("")
		pv := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: c.Name}}
		pv.Spec = corev1.PersistentVolumeSpec{
			ClaimRef: &corev1.ObjectReference{Namespace: c.Namespace, Name: c.Name}, Capacity: c.Spec.Resources.Requests, AccessModes: c.Spec.AccessModes,
			PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain,
			PersistentVolumeSource:        corev1.PersistentVolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: folder}},
		}
		return []client.Object{pv, c}
	})
	if err != nil {
		return err
	}
	for _, o := range objects {
		if err := r.admin.Create(ctx, o); err != nil {
			return err
		}
	}
	return nil
}

func (r *Real) startAgent(n *node) error {
	return n.start(nil, r.rig.Config(rig.NodeUser(n.name)), r.scheme, rand.New(rand.NewPCG(r.o.Seed, uint64(100+n.port))))
}

func (r *Real) note(format string, args ...any) {
	r.o.Log("%s %s", time.Since(r.begun).Round(time.Second/10), fmt.Sprintf(format, args...))
}

// Close ends everything.
func (r *Real) Close(ctx context.Context) error {
	var all []error
	for _, n := range r.nodes {
		if n.agent != nil {
			n.agent.kill()
			<-n.agent.ended
			all = append(all, n.agent.err)
		}
	}
	if r.daemon != nil {
		all = append(all, r.daemon.wake())
	}
	return errors.Join(append(all, r.rig.Stop(ctx), os.RemoveAll(r.dir))...)
}

// Keep makes Close leave the logs of the control plane behind, and returns their folder.
func (r *Real) Keep() string {
	r.rig.Keep()
	return r.rig.Dir()
}

// Run soaks for the time that the options say. The report is complete even if there is an error.
func (r *Real) Run(ctx context.Context) (Report, error) {
	out := Report{Seed: r.o.Seed, Span: r.o.Duration}
	r.begun = time.Now()
	var err error
	for time.Since(r.begun) < r.o.Duration && err == nil {
		var s Sample
		if s, err = r.window(ctx); err == nil {
			out.Samples = append(out.Samples, s)
			r.note("at rest: %v", s.Values)
		}
	}
	judged := r.judge(&out)
	return out, errors.Join(err, judged)
}

// window is a time of operations and faults, and the rest after it, after which everything is deleted.
func (r *Real) window(ctx context.Context) (Sample, error) {
	if err := r.stir(ctx); err != nil {
		return Sample{}, err
	}
	if err := r.until(ctx, "not everything is at rest", (*sight).wrong); err != nil {
		return Sample{}, err
	}
	if err := r.user.DeleteAll(ctx); err != nil {
		return Sample{}, err
	}
	if err := r.until(ctx, "something is left of guests that were deleted", (*sight).leftovers); err != nil {
		return Sample{}, err
	}
	return r.sample(ctx)
}

func (r *Real) until(ctx context.Context, what string, wrong func(*sight) []string) error {
	var last []string
	for begun := time.Now(); time.Since(begun) < realRest && ctx.Err() == nil; time.Sleep(realLook) {
		g, err := r.daemon.Metrics(ctx)
		if err != nil {
			return err
		}
		s, err := lookAt(ctx, r.admin, r.nodes, g)
		if err != nil {
			return err
		}
		if last = wrong(s); len(last) == 0 {
			return nil
		}
	}
	return fmt.Errorf("after %s without faults %s: %v; %w", realRest, what, last, ctx.Err())
}

// stir does operations and lets things go wrong for a window, and then undoes what went wrong.
func (r *Real) stir(ctx context.Context) error {
	end := time.Now().Add(r.o.Window)
	operation, fault := time.Now(), time.Now().Add(r.around(r.o.FaultPause))
	for now := time.Now(); now.Before(end) && ctx.Err() == nil; now = time.Now() {
		if !now.Before(operation) {
			what, err := r.user.Do(ctx)
			if err != nil {
				r.note("not done: %v", err) // the API server may be stopped
			} else if what != "" {
				r.ops++
				r.note("%s", what)
			}
			operation = now.Add(r.around(r.o.Pause))
		}
		if !now.Before(fault) {
			if err := r.misfortune(ctx); err != nil {
				return err
			}
			fault = now.Add(r.around(r.o.FaultPause))
		}
		var err error
		if r.undo, err = undone(ctx, r.undo, now); err != nil {
			return err
		}
		time.Sleep(50 * time.Millisecond)
	}
	var err error
	r.undo, err = undone(ctx, r.undo, end.Add(24*time.Hour))
	r.note("no more faults")
	return errors.Join(err, ctx.Err())
}
