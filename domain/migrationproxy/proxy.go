// SPDX-License-Identifier: Apache-2.0

package migrationproxy

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/virtloom/virtloom/domain/transport"
)

// Proxy carries migrations to and from this node. Make one with [New]; it is safe for concurrent
// use.
type Proxy struct {
	o Options

	opening sync.Mutex // held while something is opened or closed
	mu      sync.Mutex // guards the fields below; changes hold opening too
	targets map[types.UID]*target
	sources map[types.UID]*source
	ended   bool
}

// put records an end of a migration under its key; nil removes it.
func put[end any](p *Proxy, all map[types.UID]*end, key types.UID, e *end) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if e == nil {
		delete(all, key)
	} else {
		all[key] = e
	}
}

var _ transport.Transport = (*Proxy)(nil)

// ErrEnded reports that the proxy has ended with its program; see [Proxy.Start].
var ErrEnded = errors.New("the migration proxy has ended")

// NewProxy returns a proxy with these options; the error names all invalid ones, and wraps
// [domain.ErrInvalid].
func NewProxy(o Options) (*Proxy, error) {
	o, err := o.complete()
	if err != nil {
		return nil, err
	}
	return &Proxy{o: o, targets: map[types.UID]*target{}, sources: map[types.UID]*source{}}, nil
}

// Close ends both ends of the key's migration on this node, with their streams and sockets, and
// returns when they have ended.
func (p *Proxy) Close(key types.UID) {
	p.opening.Lock()
	defer p.opening.Unlock()
	p.mu.Lock()
	t, s := p.targets[key], p.sources[key]
	delete(p.targets, key)
	delete(p.sources, key)
	p.mu.Unlock()
	t.close()
	s.close()
}

// Start waits for the context's end and ends the proxy: no connection is accepted from then on, and
// open streams end by themselves within [Options.Drain] or are ended. It implements
// controller-runtime's Runnable, and never returns an error.
func (p *Proxy) Start(ctx context.Context) error {
	<-ctx.Done()
	p.opening.Lock()
	p.mu.Lock()
	p.ended = true
	p.mu.Unlock()
	p.opening.Unlock()
	p.drain()
	for _, key := range p.keys() {
		p.Close(key)
	}
	return nil
}

// NeedLeaderElection is false: each node has its own proxy.
func (p *Proxy) NeedLeaderElection() bool { return false }

// drainEvery is the interval at which open streams are counted.
const drainEvery = 20 * time.Millisecond

func (p *Proxy) drain() {
	if p.o.Drain == 0 {
		return
	}
	over := time.NewTimer(p.o.Drain)
	defer over.Stop()
	tick := time.NewTicker(drainEvery)
	defer tick.Stop()
	for p.flowing() {
		select {
		case <-over.C:
			return
		case <-tick.C:
		}
	}
}

// flowing reports whether there are streams, incomplete ones included.
func (p *Proxy) flowing() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	busy := 0
	for _, s := range p.sources {
		busy += len(s.slots)
	}
	for _, t := range p.targets {
		busy += len(t.slots)
	}
	return busy > 0
}

func (p *Proxy) keys() []types.UID {
	p.mu.Lock()
	defer p.mu.Unlock()
	var keys []types.UID
	for k := range p.targets {
		keys = append(keys, k)
	}
	for k := range p.sources {
		keys = append(keys, k)
	}
	return keys
}

// Stats are the statistics of an end of a migration, until it is closed.
type Stats struct {
	// Key is the tunnel's, Domain its domain's name here, Peer the other node.
	Key          types.UID
	Domain, Peer string
	// Target reports whether this is the target's end.
	Target bool
	// Sent and Received are bytes of the hypervisors' streams, to the other node and
	// from it.
	Sent, Received uint64
	// Streams counts those open now, Refused those that were not accepted, Broken those that ended
	// with an error.
	Streams         int
	Refused, Broken uint64
	// Trouble is the error of the last stream that was refused or broke; empty if there is none.
	Trouble string
}

// Stats returns those of all open migrations, ordered by key, the source's end first.
func (p *Proxy) Stats() []Stats {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := []Stats{}
	for _, s := range p.sources {
		all = append(all, s.stats(false))
	}
	for _, t := range p.targets {
		all = append(all, t.stats(true))
	}
	slices.SortStableFunc(all, func(a, b Stats) int { return cmp.Compare(a.Key, b.Key) })
	return all
}
