// SPDX-License-Identifier: Apache-2.0

package vmictrl_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	v1 "kubevirt.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/virtloom/virtloom/handoff"
	"github.com/virtloom/virtloom/vmi/vmictrl"
)

// errKilled is what a killed process sees of its last write: nothing.
var errKilled = errors.New("killed")

// mostWrites is more than any of the paths writes.
const mostWrites = 20

// dying is the client of a process that dies right after its nth write took
// effect, before it learns of it; all later calls fail.
type dying struct {
	client.Client
	left *atomic.Int64
	dead chan struct{}
}

func (d dying) guard(write func() error) error {
	if d.left.Load() <= 0 {
		return errKilled
	}
	if err := write(); err != nil {
		return err
	}
	switch n := d.left.Add(-1); {
	case n == 0:
		close(d.dead)
		return errKilled
	case n < 0:
		return errKilled
	default:
		return nil
	}
}

func (d dying) Create(ctx context.Context, o client.Object, opts ...client.CreateOption) error {
	return d.guard(func() error { return d.Client.Create(ctx, o, opts...) })
}

func (d dying) Patch(ctx context.Context, o client.Object, p client.Patch, opts ...client.PatchOption) error {
	return d.guard(func() error { return d.Client.Patch(ctx, o, p, opts...) })
}

func (d dying) Delete(ctx context.Context, o client.Object, opts ...client.DeleteOption) error {
	return d.guard(func() error { return d.Client.Delete(ctx, o, opts...) })
}

func (d dying) SubResource(name string) client.SubResourceClient {
	return dyingSubResource{d.Client.SubResource(name), d}
}

type dyingSubResource struct {
	client.SubResourceClient
	d dying
}

func (s dyingSubResource) Patch(ctx context.Context, o client.Object, p client.Patch, opts ...client.SubResourcePatchOption) error {
	return s.d.guard(func() error { return s.SubResourceClient.Patch(ctx, o, p, opts...) })
}

// mortal runs a controller that dies after its nth write. What begin begins, its
// successor brings to the end that reached recognises; mortal reports whether
// the controller died before that.
func (w *world) mortal(n int64, begin func(), reached func() bool) bool {
	w.t.Helper()
	d := dying{left: &atomic.Int64{}, dead: make(chan struct{})}
	d.left.Store(n)
	stop := w.start(setup{edit: func(r *vmictrl.Reconciler) {
		d.Client = r.Client
		r.Client = d
	}})
	begin()
	w.eventually(func() string {
		if reached() {
			return ""
		}
		select {
		case <-d.dead:
			return ""
		default:
			return "it is neither dead nor done"
		}
	})
	stop()
	died := d.left.Load() <= 0
	w.start(setup{})
	w.eventually(func() string {
		if !reached() {
			return fmt.Sprintf("the successor of a controller that died after write %d does not get there", n)
		}
		return ""
	})
	return died
}

func (w *world) phase(g *v1.VirtualMachineInstance) v1.VirtualMachineInstancePhase {
	seen := &v1.VirtualMachineInstance{}
	if err := w.Get(w.t.Context(), client.ObjectKeyFromObject(g), seen); err != nil {
		return ""
	}
	return seen.Status.Phase
}

func killedStarting(w *world) {
	for n := int64(1); n <= mostWrites; n++ {
		w := w.world(w.t)
		var g *v1.VirtualMachineInstance
		died := w.mortal(n, func() { g = w.guest("guest") }, func() bool { return w.phase(g) == v1.Scheduled })
		w.await(g, "the offer", func() bool { return g.Status.Phase == v1.Scheduled })
		if l := w.lease(g); l.State != handoff.Offered || l.Epoch != 1 {
			w.t.Errorf("after write %d: the lease is %+v", n, l)
		}
		w.awaitPods(1)
		w.onePodEach(1)
		if !died {
			return
		}
	}
	w.t.Errorf("a start takes more than %d writes", mostWrites)
}

func killedDeleting(w *world) {
	for n := int64(1); n <= mostWrites; n++ {
		w := w.world(w.t)
		stop := w.start(setup{})
		g := w.running("guest")
		stop()
		var found v1.VirtualMachineInstanceList
		died := w.mortal(n, func() {
			w.delete(g)
			w.node(g, handoff.Release, v1.Succeeded)
		}, func() bool {
			err := w.List(w.t.Context(), &found, client.InNamespace(w.ns))
			return err == nil && len(found.Items) == 0
		})
		w.awaitPods(0)
		w.onePodEach(1)
		if !died {
			return
		}
	}
	w.t.Errorf("a deletion takes more than %d writes", mostWrites)
}
