// SPDX-License-Identifier: Apache-2.0

package health

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"k8s.io/utils/clock"

	"github.com/virtloom/virtloom/internal/measure"
)

// Defaults of a [Pulse].
const (
	// DefaultEvery is how often is asked.
	DefaultEvery = 10 * time.Second
	// DefaultSilent is how old the last answer may be.
	DefaultSilent = 45 * time.Second
	// DefaultStuck is how long a question may take to return at all.
	DefaultStuck = 5 * time.Minute
)

// askWithin is the time that a question is given.
const askWithin = 30 * time.Second

// Pulse asks something again and again whether it answers, such as a hypervisor. Add it to a
// manager. Its metrics:
//
//	virtloom_node_hypervisor_answers                        1 if the last question was answered, else 0
//	virtloom_node_hypervisor_last_answer_timestamp_seconds  when one was answered last
type Pulse struct {
	// Ask asks; required. It returns when its context ends.
	Ask func(ctx context.Context) error
	// Every, Silent and Stuck default to DefaultEvery, DefaultSilent and DefaultStuck.
	Every, Silent, Stuck time.Duration
	// Clock defaults to the real one.
	Clock clock.WithTicker

	mu       sync.Mutex
	asked    time.Time // guarded by mu, as are the others: when the question was put that is open; zero if none
	answered time.Time
	err      error
}

// NeedLeaderElection is false: what is asked is of this process.
func (*Pulse) NeedLeaderElection() bool { return false }

// Start asks until ctx ends.
func (p *Pulse) Start(ctx context.Context) error {
	t := p.clock().NewTicker(or(p.Every, DefaultEvery))
	defer t.Stop()
	for {
		p.once(ctx)
		select {
		case <-ctx.Done():
			return nil
		case <-t.C():
		}
	}
}

func (p *Pulse) once(ctx context.Context) {
	p.note(func(now time.Time) { p.asked = now })
	ctx, cancel := context.WithTimeout(ctx, askWithin)
	defer cancel()
	err := p.Ask(ctx)
	p.note(func(now time.Time) {
		p.asked, p.err = time.Time{}, err
		if err == nil {
			p.answered = now
		}
	})
}

// note changes what is known.
func (p *Pulse) note(change func(now time.Time)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	change(p.clock().Now())
}

// Ready is sound while there are answers.
func (p *Pulse) Ready(*http.Request) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.answered.IsZero() {
		return errors.Join(errors.New("the hypervisor has not answered yet"), p.err)
	}
	if age := p.clock().Now().Sub(p.answered); age > or(p.Silent, DefaultSilent) {
		return errors.Join(fmt.Errorf("the hypervisor has not answered for %s", age.Round(time.Second)), p.err)
	}
	return nil
}

// Alive is sound while questions return, be it with an error.
func (p *Pulse) Alive(*http.Request) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.asked.IsZero() {
		return nil
	}
	if age := p.clock().Now().Sub(p.asked); age > or(p.Stuck, DefaultStuck) {
		return fmt.Errorf("a question to the hypervisor has not returned for %s", age.Round(time.Second))
	}
	return nil
}

func (p *Pulse) clock() clock.WithTicker {
	if p.Clock == nil {
		return clock.RealClock{}
	}
	return p.Clock
}

func or(d, usual time.Duration) time.Duration {
	if d > 0 {
		return d
	}
	return usual
}

// Metrics are what the last answer was, as a collector of Prometheus.
func (p *Pulse) Metrics() *measure.Set {
	s := &measure.Set{}
	s.ReadGauge(measure.Family{
		Name: "virtloom_node_hypervisor_answers", Bound: "1", Help: "Whether the hypervisor has answered the last question.",
	}, func(emit measure.Emit) {
		answers, _ := p.last()
		emit(answers)
	})
	s.ReadGauge(measure.Family{
		Name: "virtloom_node_hypervisor_last_answer_timestamp_seconds", Bound: "1",
		Help: "When the hypervisor has answered last, in seconds since 1970; 0 if it has not yet.",
	}, func(emit measure.Emit) {
		_, at := p.last()
		emit(at)
	})
	return s
}

// last tells whether the last question was answered, 1 or 0, and when one was.
func (p *Pulse) last() (answers, at float64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.answered.IsZero() {
		return 0, 0
	}
	if p.err == nil {
		answers = 1
	}
	return answers, float64(p.answered.UnixMilli()) / 1000
}
