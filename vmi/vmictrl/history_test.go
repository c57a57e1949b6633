// SPDX-License-Identifier: Apache-2.0

package vmictrl_test

import (
	"context"
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	v1 "kubevirt.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/virtloom/virtloom/handoff"
	"github.com/virtloom/virtloom/internal/rig"
)

// history is every state of a world's VMI.
type history struct {
	mu     sync.Mutex
	states []*v1.VirtualMachineInstance // guarded by mu
	gone   bool                         // guarded by mu
}

// record starts the history of the world's VMI, which is created later, until the context ends.
func (w *world) record(ctx context.Context) *history {
	w.t.Helper()
	c, err := client.NewWithWatch(w.Config(rig.UserAdmin), client.Options{Scheme: w.scheme})
	if err != nil {
		w.t.Fatal(err)
	}
	events, err := c.Watch(ctx, &v1.VirtualMachineInstanceList{}, client.InNamespace(w.ns))
	if err != nil {
		w.t.Fatal(err)
	}
	h := &history{}
	go func() {
		for e := range events.ResultChan() {
			if g, ok := e.Object.(*v1.VirtualMachineInstance); ok {
				h.add(g, e.Type == watch.Deleted)
			}
		}
	}()
	return h
}

func (h *history) add(g *v1.VirtualMachineInstance, gone bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.gone = gone; gone {
		return // with the state of before
	}
	g.ResourceVersion, g.ManagedFields = "", nil
	h.states = append(h.states, g)
}

// complete waits until the history is complete, when the VMI is no longer written.
func (h *history) complete(w *world, g *v1.VirtualMachineInstance) []*v1.VirtualMachineInstance {
	w.t.Helper()
	const marker = "example.test/end"
	if w.Get(w.t.Context(), client.ObjectKeyFromObject(g), g) == nil {
		w.change(g, func(g *v1.VirtualMachineInstance) { metav1.SetMetaDataAnnotation(&g.ObjectMeta, marker, "") })
	}
	var states []*v1.VirtualMachineInstance
	w.eventually(func() string {
		h.mu.Lock()
		defer h.mu.Unlock()
		states = h.states
		if n := len(states); h.gone || n > 0 && metav1.HasAnnotation(states[n-1].ObjectMeta, marker) {
			return ""
		}
		return "the watch does not show the last state of the guest yet"
	})
	return states
}

// onwards fails if the VMI returned to an earlier state or phase, or was offered more than once.
func (h *history) onwards(w *world, g *v1.VirtualMachineInstance) {
	w.t.Helper()
	states := h.complete(w, g)
	var phases []v1.VirtualMachineInstancePhase
	offers := map[string]bool{}
	for i, s := range states {
		for _, before := range states[:i] {
			if equality.Semantic.DeepEqual(before, s) {
				w.t.Errorf("state %d of the guest was there before: %+v", i, s.Status)
			}
		}
		if p := s.Status.Phase; len(phases) == 0 || phases[len(phases)-1] != p {
			phases = append(phases, p)
		}
		if l, err := handoff.Of(s); err != nil {
			w.t.Errorf("state %d of the guest: %v", i, err)
		} else if l.State == handoff.Offered {
			offers[l.Holder+l.Deadline.String()] = true
		}
	}
	distinct := slices.Clone(phases)
	slices.Sort(distinct)
	if len(slices.Compact(distinct)) < len(phases) || len(offers) > 1 {
		w.t.Errorf("the guest was in phases %v, with offers %v", phases, offers)
	}
}
