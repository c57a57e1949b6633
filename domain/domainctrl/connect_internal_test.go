// SPDX-License-Identifier: Apache-2.0

package domainctrl

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	v1 "kubevirt.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/cache/informertest"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/action"
	"github.com/virtloom/virtloom/domain/fleet"
	"github.com/virtloom/virtloom/domain/informer"
	"github.com/virtloom/virtloom/domain/plan"
	"github.com/virtloom/virtloom/domain/transport"
	"github.com/virtloom/virtloom/domain/workspace"
	"github.com/virtloom/virtloom/handoff"
)

// failing is a connector whose launchers are unreachable.
type failing struct{ err error }

func (f failing) Connect(context.Context, *v1.VirtualMachineInstance, *corev1.Pod) (domain.Hypervisor, error) {
	return nil, f.err
}

// TestConnect_UnresponsiveLauncherIsNotGone has agents that were just started: their fleets do not
// know the launcher yet.
func TestConnect_UnresponsiveLauncherIsNotGone(t *testing.T) {
	const here, there, job = "node-a", "node-b", types.UID("migration-1")
	deleted := metav1.Now()
	for name, tt := range map[string]struct {
		lease   handoff.Lease
		phase   v1.VirtualMachineInstancePhase
		deleted *metav1.Time
	}{
		"it runs here":                     {handoff.Lease{State: handoff.Owned, Epoch: 1, Holder: here}, v1.Running, nil},
		"it is being deleted":              {handoff.Lease{State: handoff.Owned, Epoch: 1, Holder: here}, v1.Running, &deleted},
		"it is about to end":               {handoff.Lease{State: handoff.Releasing, Epoch: 1, Holder: here}, v1.Running, &deleted},
		"it is final":                      {handoff.Lease{State: handoff.Owned, Epoch: 1, Holder: here}, v1.Failed, nil},
		"only this node knows where it is": {handoff.Lease{State: handoff.Moving, Epoch: 2, Holder: there, Target: here, Tag: job, Stalled: true}, v1.Running, nil},
		"its source was fenced":            {handoff.Lease{State: handoff.Fenced, Epoch: 3, Target: here, Tag: job}, v1.Running, nil},
		"it comes, and is being deleted":   {handoff.Lease{State: handoff.Moving, Epoch: 2, Holder: there, Target: here, Tag: job, Stalled: true}, v1.Running, &deleted},
	} {
		t.Run(name, func(t *testing.T) {
			vmi := &v1.VirtualMachineInstance{
				ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "guest", UID: "uid-1", DeletionTimestamp: tt.deleted},
				Status:     v1.VirtualMachineInstanceStatus{Phase: tt.phase},
			}
			if err := handoff.Put(vmi, tt.lease); err != nil {
				t.Fatal(err)
			}
			for _, answer := range []error{domain.ErrTimeout, domain.ErrDisconnected, domain.ErrUnsupported, domain.ErrInvalid} {
				r := &Reconciler{
					NodeName: here, Hypervisor: &fleet.Fleet{}, Connector: failing{fmt.Errorf("dial: %w", answer)}, Informer: &informer.Informer{},
					Workspace: &workspace.Workspace{Root: t.TempDir()}, Clock: clock.RealClock{}, CallTimeout: time.Minute,
					Caches: &Caches{Pods: &informertest.FakeInformers{}},
				}
				r.migrations, r.agents = newMigrations(r.Clock, time.Minute), newAgents(r.Hypervisor, r.Informer)
				key := types.NamespacedName{Namespace: "ns", Name: "guest"}
				s, err := r.snapshot(t.Context(), key, vmi)
				if err != nil {
					continue // no decision
				}
				plan, err := plan.Decide(s, time.Now())
				if err != nil {
					t.Fatal(err)
				}
				after, err := handoff.Of(plan.VMI)
				if err != nil {
					t.Fatal(err)
				}
				if after.State == handoff.Released || after.Epoch != tt.lease.Epoch || after.Target != tt.lease.Target || plan.VMI.Status.Phase != tt.phase {
					t.Errorf("%v: the lease became %+v, the phase %s", answer, after, plan.VMI.Status.Phase)
				}
				for _, task := range plan.Actions {
					t.Errorf("%v: %s", answer, task)
				}
				// An invalid answer affects its own VMI only, whose status reports it.
				if says := outOfSync(plan.VMI); errors.Is(answer, domain.ErrInvalid) && handoff.RoleOf(tt.lease, here) == handoff.RoleHolder && !strings.Contains(says, "dial") {
					t.Errorf("the object says %q", says)
				}
			}
		})
	}
}

// TestConnect_EndedLauncherIsGone has launchers that are known to have ended.
func TestConnect_EndedLauncherIsGone(t *testing.T) {
	for name, tt := range map[string]struct {
		state   handoff.State
		blocked bool
	}{
		"wanted": {handoff.Owned, true}, "about to end": {handoff.Releasing, false}, "of a node that was silent": {handoff.Lost, false},
	} {
		t.Run(name, func(t *testing.T) {
			vmi := &v1.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "guest"}, Status: v1.VirtualMachineInstanceStatus{Phase: v1.Running}}
			l := handoff.Lease{State: tt.state, Epoch: 1, Holder: "node-a"}
			if tt.state == handoff.Lost {
				l.Was = handoff.Owned
			}
			if err := handoff.Put(vmi, l); err != nil {
				t.Fatal(err)
			}
			r := &Reconciler{NodeName: "node-a", Connector: failing{domain.ErrNotReady}, CallTimeout: time.Minute}
			s := plan.Snapshot{Node: r.NodeName, VMI: vmi}
			if err := r.connect(t.Context(), observe(vmi, time.Time{}), &s); err != nil || (s.PrepareError != nil) != tt.blocked {
				t.Errorf("error %v, obstacle %v; want an obstacle: %t", err, s.PrepareError, tt.blocked)
			}
		})
	}
}

// listener is a transport that records the tunnel it listens on.
type listener struct {
	transport.Direct
	heard transport.Tunnel
}

func (l *listener) Listen(ctx context.Context, p transport.Tunnel) (transport.Endpoint, error) {
	l.heard = p
	return l.Direct.Listen(ctx, p)
}

func TestListen_TunnelInUse(t *testing.T) {
	way := &listener{Direct: transport.Direct{Address: "192.0.2.1", Port: 1}}
	r := &Reconciler{NodeName: "node-a", Transport: way, CallTimeout: time.Minute}
	key := types.NamespacedName{Namespace: "ns", Name: "guest"}
	s := plan.Snapshot{VMI: &v1.VirtualMachineInstance{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "guest", UID: "uid-1"},
		Status: v1.VirtualMachineInstanceStatus{
			MigrationMethod: v1.BlockMigration,
			MigrationState:  &v1.VirtualMachineInstanceMigrationState{MigrationUID: "migration-1", SourceNode: "node-b", TargetNode: "node-a"},
		},
	}}
	listen := func(asked bool) {
		(preparer{r}).listen(t.Context(), key, &s, action.Action{Tunnel: transport.TunnelOf(s.VMI, r.NodeName), Needed: asked})
	}
	listen(true)
	opened := way.heard
	if !opened.CopyDisks || opened.Peer != "node-b" {
		t.Fatalf("listens by %+v", opened)
	}
	s.VMI.Status.MigrationMethod = v1.LiveMigration
	if listen(false); way.heard != opened {
		t.Errorf("on its way the guest meets %+v instead of %+v", way.heard, opened)
	}
	if listen(true); way.heard.CopyDisks {
		t.Errorf("before anything has begun what the object says was not heeded: %+v", way.heard)
	}
	s.VMI.Status.MigrationState.MigrationUID, s.VMI.Status.MigrationMethod = "migration-2", v1.BlockMigration
	if listen(false); way.heard.Migration != "migration-2" || !way.heard.CopyDisks {
		t.Errorf("another migration goes by %+v", way.heard)
	}
}
