// SPDX-License-Identifier: Apache-2.0

package domainctrl

import (
	"context"
	"fmt"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/handoff"
)

// passages remembers by which ways guests may come to this node. The zero value is
// ready; safe for concurrent use.
type passages struct {
	mu   sync.Mutex
	open map[types.NamespacedName]*passage
}

// passage is a way that a [domain.Transport] listens at.
type passage struct {
	domain.Passage
	// moving says that the guest comes by it, or its arrival is not all told.
	moving bool
	// closes is when it shall be closed; zero while it is needed.
	closes time.Time
}

// note remembers an open passage, instead of what there was.
func (p *passages) note(key types.NamespacedName, to domain.Passage) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.open == nil {
		p.open = map[types.NamespacedName]*passage{}
	}
	if was := p.open[key]; was == nil || was.Passage != to {
		p.open[key] = &passage{Passage: to}
	}
}

// opened is the passage of that migration as it was opened, to itself if it was not: what
// the object says of it by now is no reason to break off what flows.
func (p *passages) opened(key types.NamespacedName, to domain.Passage) domain.Passage {
	p.mu.Lock()
	defer p.mu.Unlock()
	if was := p.open[key]; was != nil && was.Key == to.Key && was.Migration == to.Migration {
		return was.Passage
	}
	return to
}

// drop forgets the guest's passage; what it was is returned, nil if there was none.
func (p *passages) drop(key types.NamespacedName) *passage {
	p.mu.Lock()
	defer p.mu.Unlock()
	was := p.open[key]
	delete(p.open, key)
	return was
}

// due tells when the guest's passage is to be closed, from then on if nothing was said
// before; nothing is to be closed if found is false.
func (p *passages) due(key types.NamespacedName, then time.Time) (at time.Time, found bool) {
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

// keep notes that the guest's passage is needed, and whether the guest is on it.
func (p *passages) keep(key types.NamespacedName, moving bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if way := p.open[key]; way != nil {
		way.moving, way.closes = moving, time.Time{}
	}
}

// coming are the guests that are on their way to this node.
func (p *passages) coming() []types.NamespacedName {
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

// carries tells whether the guest is on its way to this node.
func (p *passages) carries(key types.NamespacedName) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	way := p.open[key]
	return way != nil && way.moving
}

// listen lets the guest's migration come. That it cannot stands in the way as long as
// nothing has begun, while asked; later the guest, and not the way, tells what becomes
// of it.
func (r *Reconciler) listen(ctx context.Context, key types.NamespacedName, s *domain.Sight, asked bool) {
	ctx, cancel := context.WithTimeout(ctx, r.CallTimeout)
	defer cancel()
	p := domain.PassageOf(s.VMI, r.NodeName)
	if !asked {
		p = r.passages.opened(key, p)
	}
	l, err := r.Transport.Listen(ctx, p)
	if err != nil {
		err = fmt.Errorf("domainctrl: listen for the migration of %s from node %s: %w", key, p.Peer, err)
		logger(ctx).Error(err, "Cannot take a migration")
		if asked {
			s.Obstacle = err
		}
		return
	}
	s.Listening = l
	r.passages.note(key, p)
}

// release closes the way of a migration that is over on this node, and says when to
// look again, zero for never: at the target the way stays a while, for the source's
// hypervisor may still wait there for the last word, without which it would let the
// guest go on.
func (r *Reconciler) release(key types.NamespacedName, v view, was, want handoff.Lease) time.Time {
	now := r.Clock.Now()
	role := domain.RoleOf(want, r.NodeName)
	switch {
	case role == domain.RoleTarget, want.State == handoff.Arrived && role == domain.RoleHolder:
		r.passages.keep(key, want.State != handoff.Preparing && want.State != handoff.Prepared)
		return time.Time{}
	case was.InMove() && was.Holder == r.NodeName && role == domain.RoleHolder && !want.InMove():
		// What another process of this agent may have left.
		r.Transport.Close(domain.PassageKey(v.vmi))
	}
	after := time.Duration(0)
	if role == domain.RoleHolder {
		after = r.CloseAfter
	}
	at, found := r.passages.due(key, now.Add(after))
	if !found {
		return time.Time{}
	}
	if now.Before(at) {
		return at
	}
	if way := r.passages.drop(key); way != nil {
		r.Transport.Close(way.Key)
	}
	return time.Time{}
}
