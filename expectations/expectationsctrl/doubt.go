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

// Late is a creation whose outcome is unknown and which the API server had not carried out when it was asked. It may be
// carried out yet.
type Late struct {
	// Ref is the object that may appear.
	expectations.Ref
	// Until is when it counts as never made: one TTL after it was sent.
	Until time.Time
}

// Late lists the creations of an owner that may still be carried out, though Check no longer waits for them. To repeat
// one is safe, as its name is the same: whichever comes second is refused. That the object does not exist must not be
// concluded while it is listed: an owner that is released now leaves behind what arrives.
func (g *Gate) Late(o expectations.Owner) []Late { return g.doubts.lateOf(o, g.now()) }

// doubts are the creations whose outcome is unknown, by owner.
type doubts struct {
	mu sync.Mutex
	by map[expectations.Owner]*doubt // guarded by mu
}

type doubt struct {
	// open are those that no live read has looked for, late those that one did not find.
	open []expectations.Token
	late []Late
	// last is when the newest was sent.
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

// has reports whether the write is a creation in doubt that no live read has looked for.
func (d *doubts) has(o expectations.Owner, tok expectations.Token) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	of := d.by[o]
	return of != nil && slices.Contains(of.open, tok)
}

// keep drops what is neither outstanding nor may still arrive, and old doubts of other owners that had the key.
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

// found ends the doubt about a creation that a live read has looked for; one that was not found may arrive late.
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

// settleDoubt reads live whether a creation was carried out whose outcome is unknown. If not, it is not waited for: it
// can be repeated at once.
func (g *Gate) settleDoubt(ctx context.Context, o expectations.Owner, p expectations.Pending) error {
	found, err := g.resolve(ctx, p)
	if err != nil {
		return err
	}
	g.doubts.found(o, p, found != expectations.Disproved, p.Since.Add(g.ttl))
	return nil
}
