// SPDX-License-Identifier: Apache-2.0

package expectationsctrl

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/virtloom/virtloom/expectations"
)

// Late is a creation whose outcome is unknown and which the API server had not carried out at the time of a live read. It
// may still be carried out.
type Late struct {
	// Ref is the object that may appear.
	expectations.Ref
	// Until is when the creation counts as never made: one TTL after it was sent.
	Until time.Time
}

// Late returns the creations of an owner that may still be carried out, though Check no longer waits for them. Repeating
// one is safe, as its name is the same: the second is refused. Do not conclude that the object does not exist while it is
// listed: releasing the owner now orphans an object that arrives late.
func (g *Gate) Late(o expectations.Owner) []Late { return g.doubts.lateOf(o, g.now()) }

// doubts are the creations whose outcome is unknown, by owner.
type doubts struct {
	mu sync.Mutex
	by map[expectations.Owner]*doubt // guarded by mu
}

type doubt struct {
	// open are the creations not yet read live, late those that a live read did not find.
	open []expectations.Token
	late []Late
	// last is when the newest creation was sent.
	last time.Time
}

// add notes a creation whose request has ended without an answer.
func (d *doubts) add(o expectations.Owner, tok expectations.Token, now time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	of := d.by[o]
	if of == nil {
		of = &doubt{}
		if d.by == nil {
			d.by = map[expectations.Owner]*doubt{}
		}
		d.by[o] = of
	}
	of.open, of.last = append(of.open, tok), now
}

// has reports whether the write is a creation in doubt that was not yet read live.
func (d *doubts) has(o expectations.Owner, tok expectations.Token) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	of := d.by[o]
	return of != nil && slices.Contains(of.open, tok)
}

// keep drops creations that are neither outstanding nor may still arrive, and old doubts of other owners of the key.
func (d *doubts) keep(o expectations.Owner, pending []expectations.Pending, now time.Time, ttl time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	maps.DeleteFunc(d.by, func(other expectations.Owner, of *doubt) bool {
		return other.Key == o.Key && other != o && now.Sub(of.last) >= 2*ttl
	})
	of := d.by[o]
	if of == nil {
		return
	}
	of.open = slices.DeleteFunc(of.open, func(tok expectations.Token) bool {
		return !slices.ContainsFunc(pending, func(p expectations.Pending) bool { return p.Token() == tok })
	})
	of.late = slices.DeleteFunc(of.late, func(l Late) bool { return !now.Before(l.Until) })
	if len(of.open)+len(of.late) == 0 {
		delete(d.by, o)
	}
}

// found ends the doubt about a creation that was read live; one that was not found may arrive late.
func (d *doubts) found(o expectations.Owner, p expectations.Pending, is bool, until time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	of := d.by[o]
	if of == nil {
		return
	}
	of.open = slices.DeleteFunc(of.open, func(tok expectations.Token) bool { return tok == p.Token() })
	if is {
		return
	}
	of.late = slices.DeleteFunc(of.late, func(l Late) bool { return l.Ref == p.Ref && !l.Until.After(until) })
	of.late = append(of.late, Late{Ref: p.Ref, Until: until})
}

func (d *doubts) lateOf(o expectations.Owner, now time.Time) []Late {
	d.mu.Lock()
	defer d.mu.Unlock()
	of := d.by[o]
	if of == nil {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(of.late), func(l Late) bool { return !now.Before(l.Until) })
}

func (d *doubts) forget(key types.NamespacedName) {
	d.mu.Lock()
	defer d.mu.Unlock()
	maps.DeleteFunc(d.by, func(o expectations.Owner, _ *doubt) bool { return o.Key == key })
}

// settleDoubt reads live whether a creation of unknown outcome was carried out. If not, Check does not wait for it: it can
// be repeated at once.
func (g *Gate) settleDoubt(ctx context.Context, o expectations.Owner, p expectations.Pending) error {
	found, err := g.resolve(ctx, p)
	if err != nil {
		return err
	}
	g.doubts.found(o, p, found != expectations.Disproved, p.Since.Add(g.ttl))
	return nil
}
