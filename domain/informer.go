// SPDX-License-Identifier: Apache-2.0

package domain

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	utilclock "k8s.io/utils/clock"
)

// Defaults of an [Informer].
const (
	// DefaultResync is the time between two listings without a cause.
	DefaultResync = 10 * time.Second
	// DefaultDeadline bounds one question to the hypervisor.
	DefaultDeadline = 30 * time.Second
	// DefaultQuestions is how many domains are asked about at a time.
	DefaultQuestions = 16
)

const (
	// patience is how long a question may take before the domain counts as hung:
	// it then delays no question about another, and what listings say is believed.
	patience = time.Second
	// retry is how soon something is tried again at first that the hypervisor
	// failed to answer.
	retry = time.Second
)

// Informer knows the domains of a hypervisor at any time without asking it, and
// tells who watches what has changed. Events are hints and the bulk listing is the
// truth: each is only a reason to ask about single domains. So nothing is lost by
// an event that is late, doubled or missing, and a daemon that was killed and came
// back is looked at again as a whole. What came and went between two looks may be
// told as one change; how it ended is never missed.
//
// Every domain has its own question, at most one at a time, with its own deadline. A
// domain that hangs delays no other and keeps what was known of it; see
// [State].Stale.
//
// Fields are set before [Informer.Run] and not changed afterwards. Methods may be
// called from many goroutines, before, while and after it runs.
type Informer struct {
	// Hypervisor is asked; required.
	Hypervisor Hypervisor
	// Resync is the time between two listings without a cause; DefaultResync if
	// zero.
	Resync time.Duration
	// Deadline bounds every question, by the context it is asked with;
	// DefaultDeadline if zero.
	Deadline time.Duration
	// Questions is how many domains are asked about at a time, those that hang not
	// counted; DefaultQuestions if zero.
	Questions int
	// Clock paces listings and stamps what is found; the real one if nil.
	Clock utilclock.Clock

	mu       sync.Mutex
	records  map[string]*record
	watchers map[*changeWatcher]struct{}
	link     Connection
	relinked chan struct{} // closed and dropped when link.Up changes; nil until asked for
	listed   bool          // a listing has been taken in
	unasked  int           // domains of the first listing that have not been settled
	seq      uint64
	started  bool
	ended    bool
}

// errInformerEnded is why an informer that does not run has no connection.
var errInformerEnded = errors.New("the informer has ended")

// Connection tells whether a hypervisor answers.
type Connection struct {
	// Up: the last listing was answered, and no loss was told since.
	Up bool
	// Since is when that began; zero before the first answer or failure.
	Since time.Time
	// Err is why it is not up; nil if it is, or nothing was tried yet.
	Err error
	// Changed is closed when Up is no longer what it says here, or was not for a
	// moment.
	Changed <-chan struct{}
}

// Get returns what is known of a domain; false if there is none. What the state
// points to must not be changed.
func (i *Informer) Get(name string) (State, bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if r := i.records[name]; r != nil && r.state != nil {
		return *r.state, true
	}
	return State{}, false
}

// List returns what is known of all domains, sorted by name. What the states point
// to must not be changed.
func (i *Informer) List() []State {
	i.mu.Lock()
	defer i.mu.Unlock()
	out := make([]State, 0, len(i.records))
	for _, r := range i.records {
		if r.state != nil {
			out = append(out, *r.state)
		}
	}
	slices.SortFunc(out, func(a, b State) int { return cmp.Compare(a.Name, b.Name) })
	return out
}

// HasSynced tells whether every domain of the first listing has been asked about;
// one that hangs counts as asked.
func (i *Informer) HasSynced() bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.listed && i.unasked == 0
}

// Connected tells whether the hypervisor answers; what is known stays known while
// it does not.
func (i *Informer) Connected() bool { return i.Connection().Up }

// Connection tells the same as Connected, since when and why.
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

// lockedLink notes how it is with the connection. It needs i.mu.
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

// Run keeps the informer informed until ctx ends, and then returns nil; no goroutine
// of it is left by then, and all watches end. It returns an error if the informer is
// not complete, has been run before, or the driver is closed. It can be run once.
func (i *Informer) Run(ctx context.Context) error {
	if err := i.start(); err != nil {
		return err
	}
	defer i.end()
	ctx, cancel := context.WithCancel(ctx)
	r := &informing{Informer: i, ctx: ctx, events: make(chan Event), lists: make(chan listing), slots: make(chan struct{}, i.Questions)}
	defer r.all.Wait()
	defer cancel()
	return r.loop()
}

// start checks the fields and fills in defaults.
func (i *Informer) start() error {
	i.mu.Lock()
	defer i.mu.Unlock()
	switch {
	case i.Hypervisor == nil:
		return fmt.Errorf("informer: Hypervisor is required: %w", ErrInvalid)
	case i.started:
		return fmt.Errorf("informer: it has been run before; make another: %w", ErrInvalidState)
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
	ctx    context.Context // ends with Run
	all    sync.WaitGroup  // every goroutine
	events chan Event      // closed when the driver is
	lists  chan listing
	slots  chan struct{} // one token per question that has not hung yet

	// Of the loop alone.
	listing bool          // a listing is under way
	again   bool          // another one is wanted after it
	whole   bool          // and every domain shall be asked about
	lost    uint64        // what was asked up to here says nothing about the connection
	failed  time.Duration // pause after the last listing, if it failed
}

// listing is the answer to a bulk question.
type listing struct {
	states []State
	err    error
	seq    uint64 // questions with a higher number were asked after it
	whole  bool   // every domain shall be asked about
}

// loop hears what there is to hear. It asks the hypervisor nothing itself, so that
// no answer can keep it.
func (r *informing) loop() error {
	r.all.Go(r.subscribe)
	// The stream of events begins with a Resync; without one this is the first look.
	tick := r.Clock.NewTimer(retry)
	defer tick.Stop()
	for {
		select {
		case e, open := <-r.events:
			if !open {
				return fmt.Errorf("informer: the driver has been closed: %w", ErrDisconnected)
			}
			r.hear(e)
		case l := <-r.lists:
			tick.Reset(r.take(l))
		case <-tick.C():
			r.list(false)
		case <-r.ctx.Done():
			return nil
		}
	}
}

func (r *informing) hear(e Event) {
	switch e.Kind {
	case Changed:
		r.hint(e.Domain, e.Why)
	case Resync:
		// Whatever happened before was told to nobody, what no listing shows
		// included.
		r.list(true)
	case Lost:
		r.mu.Lock()
		r.lost = r.seq
		r.lockedLink(cmp.Or(e.Err, ErrDisconnected))
		r.mu.Unlock()
	}
}

// subscribe passes events on. Until there is a stream of them the listings have to
// do.
func (r *informing) subscribe() {
	for pause := retry; r.ctx.Err() == nil; pause = min(2*pause, r.Resync) {
		if r.follow() {
			return
		}
		r.wait(pause)
	}
}

// follow opens the stream and passes it on until it ends; false if it could not be
// opened. The stream lives as long as its context, which is therefore not the one
// with the deadline.
func (r *informing) follow() bool {
	ctx, cancel := context.WithCancel(r.ctx)
	defer cancel()
	opened := make(chan (<-chan Event), 1)
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

// pass hands events to the loop until the stream or the run ends.
func (r *informing) pass(events <-chan Event) {
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

// list asks for all domains, one time after the other.
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

// take takes a listing in and returns when to ask for the next one.
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
