// SPDX-License-Identifier: Apache-2.0

package informer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	utilclock "k8s.io/utils/clock"

	"github.com/virtloom/virtloom/domain"
)

// Defaults of an [Informer].
const (
	// DefaultResync is the interval of periodic listings.
	DefaultResync = 10 * time.Second
	// DefaultDeadline bounds one call to the hypervisor.
	DefaultDeadline = 30 * time.Second
	// DefaultQuestions is the number of concurrent calls about single domains.
	DefaultQuestions = 16
)

const (
	// patience is how long a call may take before the domain counts as unresponsive: it
	// then delays no call about another domain, and takes its status from listings.
	patience = time.Second
	// retry is the first delay before a failed call is repeated.
	retry = time.Second
)

// Informer caches the domains of a hypervisor and notifies watchers of changes. Events are
// hints and the bulk listing is authoritative; each is only a reason to read single domains.
// So a late, duplicate or missing event loses nothing, and after a restart of the daemon all
// domains are read again. Changes between two reads may be merged into one; the final state
// of a domain is never missed.
//
// Each domain is read by its own call, at most one at a time, with its own deadline. An
// unresponsive domain delays no other and keeps its last known state; see
// [domain.State].Stale.
//
// Fields are set before [Informer.Run] and not changed afterwards. Methods are safe for
// concurrent use, before, during and after Run.
type Informer struct {
	// Hypervisor is the hypervisor whose domains are cached; required.
	Hypervisor domain.Hypervisor
	// Resync is the interval of periodic listings; DefaultResync if zero.
	Resync time.Duration
	// Deadline bounds each call to the hypervisor, through its context; DefaultDeadline if
	// zero.
	Deadline time.Duration
	// Questions is the number of concurrent calls about single domains, without those about
	// unresponsive ones; DefaultQuestions if zero.
	Questions int
	// Clock paces listings and stamps stale states; the real one if nil.
	Clock utilclock.Clock

	mu       sync.Mutex
	records  map[string]*record
	watchers map[*changeWatcher]struct{}
	link     Connection
	relinked chan struct{} // closed and dropped when link.Up changes; nil until requested
	listed   bool          // a listing has been processed
	unasked  int           // domains of the first listing that have not been read
	seq      uint64
	started  bool
	ended    bool
}

// errInformerEnded is the error of the connection after Run.
var errInformerEnded = errors.New("the informer has ended")

// Connection is the state of the connection to a hypervisor.
type Connection struct {
	// Up says that the last listing succeeded and no Lost event has followed.
	Up bool
	// Since is when Up last changed; zero before the first listing has succeeded or failed.
	Since time.Time
	// Err is the cause if it is not up; nil before the first listing.
	Err error
	// Changed is closed when Up changes, even for a moment.
	Changed <-chan struct{}
}

// Get returns the cached state of a domain; false if there is none. The caller must not
// change the values that the state points to.
func (i *Informer) Get(name string) (domain.State, bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if r := i.records[name]; r != nil && r.state != nil {
		return *r.state, true
	}
	return domain.State{}, false
}

// List returns the cached states of all domains, sorted by name. The caller must not change
// the values that the states point to.
func (i *Informer) List() []domain.State {
	i.mu.Lock()
	defer i.mu.Unlock()
	out := make([]domain.State, 0, len(i.records))
	for _, r := range i.records {
		if r.state != nil {
			out = append(out, *r.state)
		}
	}
	slices.SortFunc(out, func(a, b domain.State) int { return cmp.Compare(a.Name, b.Name) })
	return out
}

// HasSynced reports whether every domain of the first listing has been read; an
// unresponsive one counts as read.
func (i *Informer) HasSynced() bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.listed && i.unasked == 0
}

// Connected reports whether the hypervisor answers. The cache is kept while it does not.
func (i *Informer) Connected() bool { return i.Connection().Up }

// Connection returns the state of the connection, since when and why.
func (i *Informer) Connection() Connection {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.relinked == nil {
		i.relinked = make(chan struct{})
	}
	c := i.link
	c.Changed = i.relinked
	return c
}

// lockedLink records the state of the connection. The caller holds i.mu.
func (i *Informer) lockedLink(err error) {
	up := err == nil
	if i.link.Since.IsZero() || i.link.Up != up {
		i.link.Since = i.Clock.Now()
		if i.relinked != nil {
			close(i.relinked)
			i.relinked = nil
		}
	}
	i.link.Up, i.link.Err = up, err
}

// Run updates the cache until ctx ends, and then returns nil; all its goroutines and watches
// have ended by then. It returns an error if the informer is incomplete
// ([domain.ErrInvalid]), has been run before ([domain.ErrInvalidState]), or the driver is
// closed ([domain.ErrDisconnected]). It can be called once.
func (i *Informer) Run(ctx context.Context) error {
	if err := i.start(); err != nil {
		return err
	}
	defer i.end()
	ctx, cancel := context.WithCancel(ctx)
	r := &informing{Informer: i, ctx: ctx, events: make(chan domain.Event), lists: make(chan listing), slots: make(chan struct{}, i.Questions)}
	defer r.all.Wait()
	defer cancel()
	return r.loop()
}

// start checks the fields and sets the defaults.
func (i *Informer) start() error {
	i.mu.Lock()
	defer i.mu.Unlock()
	switch {
	case i.Hypervisor == nil:
		return fmt.Errorf("informer: Hypervisor is required: %w", domain.ErrInvalid)
	case i.started:
		return fmt.Errorf("informer: Run was called before; create another Informer: %w", domain.ErrInvalidState)
	}
	i.started = true
	i.records = map[string]*record{}
	i.Resync = cmp.Or(i.Resync, DefaultResync)
	i.Deadline = cmp.Or(i.Deadline, DefaultDeadline)
	i.Questions = cmp.Or(i.Questions, DefaultQuestions)
	if i.Clock == nil {
		i.Clock = utilclock.RealClock{}
	}
	return nil
}

func (i *Informer) end() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.ended = true
	i.lockedLink(errInformerEnded)
	for w := range i.watchers {
		w.close()
	}
}

// informing is an Informer while it runs.
type informing struct {
	*Informer
	ctx    context.Context   // ends with Run
	all    sync.WaitGroup    // every goroutine
	events chan domain.Event // closed when the driver is
	lists  chan listing
	slots  chan struct{} // one token per call that is still within its patience

	// Used by the loop only.
	listing bool          // a listing is in progress
	again   bool          // another listing must follow
	whole   bool          // and every domain must be read
	lost    uint64        // calls up to this number are no evidence of a connection
	failed  time.Duration // pause after the last listing, if it failed
}

// listing is the result of a bulk call.
type listing struct {
	states []domain.State
	err    error
	seq    uint64 // calls with a higher number were made after it
	whole  bool   // every domain must be read
}

// loop handles events, listings and ticks. It never calls the hypervisor itself, so that
// no call can block it.
func (r *informing) loop() error {
	r.all.Go(r.subscribe)
	// The stream of events begins with a Resync; without a stream this tick lists first.
	tick := r.Clock.NewTimer(retry)
	defer tick.Stop()
	for {
		select {
		case e, open := <-r.events:
			if !open {
				return fmt.Errorf("informer: the driver has been closed: %w", domain.ErrDisconnected)
			}
			r.handle(e)
		case l := <-r.lists:
			tick.Reset(r.take(l))
		case <-tick.C():
			r.list(false)
		case <-r.ctx.Done():
			return nil
		}
	}
}

func (r *informing) handle(e domain.Event) {
	switch e.Kind {
	case domain.Changed:
		r.hint(e.Domain, e.Why)
	case domain.Resync:
		// Events from before are lost, including those of changes that no listing shows.
		r.list(true)
	case domain.Lost:
		r.mu.Lock()
		r.lost = r.seq
		r.lockedLink(cmp.Or(e.Err, domain.ErrDisconnected))
		r.mu.Unlock()
	}
}

// subscribe opens the stream of events, with retries. Until it is open only listings find
// changes.
func (r *informing) subscribe() {
	for pause := retry; r.ctx.Err() == nil; pause = min(2*pause, r.Resync) {
		if r.follow() {
			return
		}
		r.wait(pause)
	}
}

// follow opens the stream and forwards it until it ends; false if it could not be opened.
// The context of the stream has no deadline, since the stream lives as long as it.
func (r *informing) follow() bool {
	ctx, cancel := context.WithCancel(r.ctx)
	defer cancel()
	opened := make(chan (<-chan domain.Event), 1)
	r.all.Go(func() {
		events, err := r.Hypervisor.Watch(ctx)
		if err != nil {
			events = nil
		}
		opened <- events
	})
	deadline := r.Clock.NewTimer(r.Deadline)
	defer deadline.Stop()
	select {
	case events := <-opened:
		if events != nil {
			r.pass(events)
		}
		return events != nil
	case <-deadline.C():
	case <-r.ctx.Done():
	}
	return false
}

// pass forwards events to the loop until the stream or the run ends.
func (r *informing) pass(events <-chan domain.Event) {
	for {
		select {
		case e, open := <-events:
			if !open {
				if r.ctx.Err() == nil { // else it ended because the run does
					close(r.events)
				}
				return
			}
			select {
			case r.events <- e:
			case <-r.ctx.Done():
				return
			}
		case <-r.ctx.Done():
			return
		}
	}
}

func (r *informing) wait(d time.Duration) {
	t := r.Clock.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C():
	case <-r.ctx.Done():
	}
}

// list starts a bulk listing, or another one after that in progress.
func (r *informing) list(whole bool) {
	r.again, r.whole = true, r.whole || whole
	if r.listing {
		return
	}
	l := listing{whole: r.whole}
	r.listing, r.again, r.whole = true, false, false
	r.mu.Lock()
	r.seq++
	l.seq = r.seq
	r.mu.Unlock()
	r.all.Go(func() {
		ctx, cancel := context.WithTimeout(r.ctx, r.Deadline)
		defer cancel()
		l.states, l.err = r.Hypervisor.List(ctx)
		select {
		case r.lists <- l:
		case <-r.ctx.Done():
		}
	})
}

// take processes a listing and returns the delay until the next one.
func (r *informing) take(l listing) time.Duration {
	r.listing = false
	r.mu.Lock()
	if l.err != nil || l.seq > r.lost {
		r.lockedLink(l.err)
	}
	if l.err == nil {
		r.lockedCompare(l)
	}
	r.mu.Unlock()
	r.failed = min(max(2*r.failed, retry), r.Resync)
	if l.err == nil {
		r.failed = 0
	}
	r.whole = r.whole || l.whole && l.err != nil
	if r.again {
		r.list(false)
	}
	return cmp.Or(r.failed, r.Resync)
}
