// SPDX-License-Identifier: Apache-2.0

package domainctrl_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/virtloom/virtloom/domain/domainctrl"
	"github.com/virtloom/virtloom/domain/internal/domainfixture"
	"github.com/virtloom/virtloom/domain/transport"
	"github.com/virtloom/virtloom/handoff"
)

// way is a transport that fails at first, and counts.
type way struct {
	transport.Transport
	listenFails, dialFails, closed atomic.Int64
}

func (w *way) Listen(ctx context.Context, p transport.Tunnel) (transport.Endpoint, error) {
	if w.listenFails.Add(-1) >= 0 {
		return transport.Endpoint{}, errors.New("no port is free")
	}
	return w.Transport.Listen(ctx, p)
}

func (w *way) Dial(ctx context.Context, p transport.Tunnel, to transport.Endpoint) (transport.Route, error) {
	if w.dialFails.Add(-1) >= 0 {
		return transport.Route{}, errors.New("no route to host")
	}
	return w.Transport.Dial(ctx, p, to)
}

func (w *way) Close(key types.UID) {
	w.closed.Add(1)
	w.Transport.Close(key)
}

// by makes the node's agents use a transport of the test's.
func (n *node) by(w *way) {
	edit := n.edit
	n.edit = func(r *domainctrl.Reconciler) {
		if edit != nil {
			edit(r)
		}
		w.Transport = r.Transport
		r.Transport = w
	}
}

// drained stops the agent of one side during a migration.
func drained(side string) func(*testing.T, *pair) {
	return func(t *testing.T, p *pair) {
		ending, other := p.a, p.b
		if side == "target" {
			ending, other = p.b, p.a
		}
		var agent *domainctrl.Reconciler
		ending.edit = func(r *domainctrl.Reconciler) { r.DrainWithin, agent = patience, r }
		stop := ending.start(t)
		other.start(t)
		vmi := p.leaving(t, 2*time.Second, asItLikes)
		eventually(t, "the guest to be on its way", func() bool { return p.b.state(vmi) != nil })
		p.until(t, "that to be known", vmi, func(handoff.Lease) bool { return vmi.Status.MigrationState.TargetNodeDomainDetected })
		select {
		case <-agent.Drained():
			t.Error("it is said to have drained, and has not been asked to")
		default:
		}
		stop()
		<-agent.Drained()
		p.until(t, "nothing", vmi, func(l handoff.Lease) bool {
			return side == "source" || l.State == handoff.Owned && l.Holder == p.b.name
		})
		if n := p.a.Calls("AbortMigration"); n > 0 {
			t.Errorf("the migration was aborted %d times", n)
		}
		if side == "target" && !vmi.Status.MigrationState.Completed {
			t.Errorf("the agent has ended before the migration was: %+v", vmi.Status.MigrationState)
		}
		ending.start(t)
		p.runsOn(t, vmi, p.b)
		p.finish(t, vmi)
	}
}

func drainedInVain(t *testing.T, p *pair) {
	p.a.edit = func(r *domainctrl.Reconciler) { r.DrainWithin = 10 * interval }
	stop := p.a.start(t)
	p.b.start(t)
	vmi := p.leaving(t, time.Hour, asItLikes)
	eventually(t, "the guest to be on its way", func() bool { return p.b.state(vmi) != nil })
	stop()
	p.get(t, vmi)
	l, err := handoff.Of(vmi)
	domainfixture.Must(t, err)
	if l.State != handoff.Owned || l.Holder != p.a.name || !reverted(l, "job") || !p.a.running(vmi) {
		t.Errorf("the agent has ended and left the lease at %s of %s; the guest is %+v", l.State, l.Holder, p.a.state(vmi))
	}
	domainfixture.Says(t, errors.New(vmi.Status.MigrationState.FailureReason), "Live migration has been aborted", "the node agent of "+p.a.name)
	p.a.start(t)
	p.staysOn(t, vmi, "the node agent of")
}

func closedLater(t *testing.T, p *pair) {
	w := &way{}
	p.b.edit = func(r *domainctrl.Reconciler) { r.CloseAfter = 10 * interval }
	p.b.by(w)
	p.start(t)
	vmi := p.leaving(t, 0, asItLikes)
	p.runsOn(t, vmi, p.b)
	eventually(t, "the way to be closed", func() bool { return w.closed.Load() == 1 })
}

func closedAtOnce(t *testing.T, p *pair) {
	w := &way{}
	p.b.edit = func(r *domainctrl.Reconciler) { r.CloseAfter = time.Hour }
	p.b.by(w)
	p.start(t)
	vmi := p.leaving(t, time.Hour, briefly)
	p.staysOn(t, vmi, tookTooLong)
	if n := w.closed.Load(); n != 1 {
		t.Errorf("the way was closed %d times", n)
	}
}
