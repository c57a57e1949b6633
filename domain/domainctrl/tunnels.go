// SPDX-License-Identifier: Apache-2.0

package domainctrl

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/virtloom/virtloom/domain/transport"
	"github.com/virtloom/virtloom/handoff"
)

// tunnels remembers the open tunnels of migrations to this node. The zero value is ready; safe
// for concurrent use.
type tunnels struct {
	mu   sync.Mutex
	open map[types.NamespacedName]*tunnel
}

// tunnel is a tunnel on which a [transport.Transport] listens.
type tunnel struct {
	transport.Tunnel
	// moving reports whether a migration uses it, or its arrival is not fully reported.
	moving bool
	// closes is when it is to be closed; zero while it is needed.
	closes time.Time
}

// note remembers an open tunnel, instead of the previous one.
func (p *tunnels) note(key types.NamespacedName, to transport.Tunnel) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.open == nil {
		p.open = map[types.NamespacedName]*tunnel{}
	}
	if was := p.open[key]; was == nil || was.Tunnel != to {
		p.open[key] = &tunnel{Tunnel: to}
	}
}

// opened returns the tunnel of that migration as it was opened, or to itself if it was not: a
// later change of the object is no reason to break the stream.
func (p *tunnels) opened(key types.NamespacedName, to transport.Tunnel) transport.Tunnel {
	p.mu.Lock()
	defer p.mu.Unlock()
	if was := p.open[key]; was != nil && was.Key == to.Key && was.Migration == to.Migration {
		return was.Tunnel
	}
	return to
}

// drop forgets the VMI's tunnel and returns it, nil if there was none.
func (p *tunnels) drop(key types.NamespacedName) *tunnel {
	p.mu.Lock()
	defer p.mu.Unlock()
	was := p.open[key]
	delete(p.open, key)
	return was
}

// due returns when the VMI's tunnel is to be closed, which is then unless an earlier call has set
// it; found is false if there is no tunnel to close.
func (p *tunnels) due(key types.NamespacedName, then time.Time) (at time.Time, found bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	way := p.open[key]
	if way == nil {
		return time.Time{}, false
	}
	way.moving = false
	if way.closes.IsZero() {
		way.closes = then
	}
	return way.closes, true
}

// keep notes that the VMI's tunnel is needed, and whether its migration uses it.
func (p *tunnels) keep(key types.NamespacedName, moving bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if way := p.open[key]; way != nil {
		way.moving, way.closes = moving, time.Time{}
	}
}

// coming returns the VMIs that are migrating to this node.
func (p *tunnels) coming() []types.NamespacedName {
	p.mu.Lock()
	defer p.mu.Unlock()
	var out []types.NamespacedName
	for key, way := range p.open {
		if way.moving {
			out = append(out, key)
		}
	}
	return out
}

// carries reports whether the VMI is migrating to this node.
func (p *tunnels) carries(key types.NamespacedName) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	way := p.open[key]
	return way != nil && way.moving
}

// release closes the tunnel of a migration that is over on this node, and returns when to look
// again, zero for never: at the target the tunnel stays a while, because the source's hypervisor
// may still wait there for the last answer, without which it would resume the guest.
func (r *Reconciler) release(key types.NamespacedName, v pass, was, want handoff.Lease) time.Time {
	now := r.Clock.Now()
	role := handoff.RoleOf(want, r.NodeName)
	switch {
	case role == handoff.RoleTarget, want.State == handoff.Arrived && role == handoff.RoleHolder:
		r.tunnels.keep(key, want.State != handoff.Preparing && want.State != handoff.Prepared)
		return time.Time{}
	case was.InMove() && was.Holder == r.NodeName && role == handoff.RoleHolder && !want.InMove():
		// An earlier process of this agent may have left one.
		r.Transport.Close(transport.TunnelKey(v.vmi))
	}
	after := time.Duration(0)
	if role == handoff.RoleHolder {
		after = r.CloseAfter
	}
	at, found := r.tunnels.due(key, now.Add(after))
	if !found {
		return time.Time{}
	}
	if now.Before(at) {
		return at
	}
	if way := r.tunnels.drop(key); way != nil {
		r.Transport.Close(way.Key)
	}
	return time.Time{}
}
