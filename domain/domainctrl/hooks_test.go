// SPDX-License-Identifier: Apache-2.0

package domainctrl_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	clocktesting "k8s.io/utils/clock/testing"
	v1 "kubevirt.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/domainctrl"
	"github.com/virtloom/virtloom/handoff"
)

// log is the sequence of the agents' writes and operations.
type log struct {
	mu    sync.Mutex
	lease string
	lines map[string][]string
}

// on makes the agent of the node write to it.
func (l *log) on(n *node) {
	n.edit = func(r *domainctrl.Reconciler) {
		r.Client = afterPatch{r.Client, func(vmi *v1.VirtualMachineInstance) { l.stored(n.name, vmi) }}
		r.Hypervisor = beforeApply{n.Hypervisor, n.Hypervisor, func(_ context.Context, op domain.Operation) { l.did(n.name, op) }}
	}
}

// did records an operation, unless it leaves the domain alone.
func (l *log) did(node string, op domain.Operation) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if op.Verb != domain.SetMetadata {
		l.lines[node] = append(l.lines[node], string(op.Verb))
	}
}

// stored records a write that changes the lease.
func (l *log) stored(node string, vmi *v1.VirtualMachineInstance) {
	l.mu.Lock()
	defer l.mu.Unlock()
	lease, err := handoff.Of(vmi)
	is := vmi.Annotations[handoff.Annotation]
	if err != nil || l.lease == is {
		return
	}
	l.lease = is
	var open []string
	for _, c := range lease.Open {
		open = append(open, c.ID)
	}
	l.lines[node] = append(l.lines[node], fmt.Sprintf("%s %s %v", lease.State, vmi.Status.Phase, open))
}

func (l *log) of(n *node) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Join(slices.Compact(l.lines[n.name]), "\n")
}

// afterPatch calls a hook after the API server's answer to a patch.
type afterPatch struct {
	client.Client
	do func(*v1.VirtualMachineInstance)
}

func (c afterPatch) Patch(ctx context.Context, o client.Object, p client.Patch, opts ...client.PatchOption) error {
	err := c.Client.Patch(ctx, o, p, opts...)
	if err == nil {
		c.do(o.(*v1.VirtualMachineInstance))
	}
	return err
}

// afterGet calls a hook after the API server's answer to a read.
type afterGet struct {
	client.Reader
	do func()
}

func (r afterGet) Get(ctx context.Context, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
	err := r.Reader.Get(ctx, key, o, opts...)
	if _, guest := o.(*v1.VirtualMachineInstance); guest {
		r.do()
	}
	return err
}

// beforeApply calls a hook before each operation.
type beforeApply struct {
	domain.Hypervisor
	domain.Migrator
	do func(context.Context, domain.Operation)
}

func (h beforeApply) Apply(ctx context.Context, op domain.Operation) error {
	h.do(ctx, op)
	return h.Hypervisor.Apply(ctx, op)
}

// slow is an agent of the node that is paused for as long as a node may act, each time the hook
// returns true, and has no cache.
func (n *node) slow(t *testing.T, edit func(r *domainctrl.Reconciler, pause func())) *domainctrl.Reconciler {
	t.Helper()
	now := clocktesting.NewFakePassiveClock(time.Now())
	n.edit = func(r *domainctrl.Reconciler) {
		r.Clock = now
		r.Caches = &domainctrl.Caches{Owned: empty{r.Caches.Owned}, Incoming: empty{r.Caches.Incoming}, Pods: r.Caches.Pods}
		edit(r, func() { now.SetTime(now.Now().Add(handoff.ActWithin)) })
	}
	_, r := n.agent(t)
	n.edit = nil
	return r
}

func pass(t *testing.T, r *domainctrl.Reconciler, vmi *v1.VirtualMachineInstance) {
	t.Helper()
	if _, err := r.Reconcile(t.Context(), reconcile.Request{NamespacedName: client.ObjectKeyFromObject(vmi)}); err != nil {
		t.Fatal(err)
	}
}

// fence fences the VMI from its unresponsive node.
func (p *pair) fence(t *testing.T, vmi *v1.VirtualMachineInstance, n *node) {
	t.Helper()
	sure := &handoff.Evidence{Kind: handoff.FenceConfirmed}
	for _, kind := range []handoff.Kind{handoff.Suspect, handoff.Fence} {
		p.step(t, vmi, handoff.Event{Kind: kind, Node: n.name, Evidence: sure}, func(*v1.VirtualMachineInstance) {})
	}
}

func (p *pair) starts(t *testing.T, n *node, want int) {
	t.Helper()
	if got := n.Calls(string(domain.Start)); got != want {
		t.Errorf("%s was asked %d times to start the guest, want %d", n.name, got, want)
	}
}
