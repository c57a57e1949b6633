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
	// DefaultEvery is the interval between calls.
	DefaultEvery = 10 * time.Second
	// defaultSilent is the maximum age of the last answer.
	defaultSilent = 45 * time.Second
	// defaultStuck is the maximum time for a call to return at all.
	defaultStuck = 5 * time.Minute
)

// askWithin is the timeout of a call.
const askWithin = 30 * time.Second

// Pulse checks regularly whether a hypervisor answers. Add it to a manager. It is safe for
// concurrent use. Its metrics:
//
//	virtloom_node_hypervisor_answers                        1 if the last call was answered, else 0
//	virtloom_node_hypervisor_last_answer_timestamp_seconds  time of the last answer
type Pulse struct {
	// Ask calls the hypervisor; required. It returns when its context ends.
	Ask func(ctx context.Context) error
	// Every, Silent and Stuck default to DefaultEvery, 45 seconds and 5 minutes.
	Every, Silent, Stuck time.Duration
	// Clock defaults to the real one.
	Clock clock.WithTicker

	mu       sync.Mutex
	asked    time.Time // guarded by mu, as are the others: start of the call under way; zero if none
	answered time.Time
	err      error
}

// NeedLeaderElection returns false: every process has its own hypervisor.
func (*Pulse) NeedLeaderElection() bool { return false }

// Start calls Ask until ctx ends.
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

// note changes the state under the lock.
func (p *Pulse) note(change func(now time.Time)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	change(p.clock().Now())
}

// Ready returns an error if the last answer is too old.
func (p *Pulse) Ready(*http.Request) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.answered.IsZero() {
		return errors.Join(errors.New("the hypervisor has not answered yet"), p.err)
	}
	if age := p.clock().Now().Sub(p.answered); age > or(p.Silent, defaultSilent) {
		return errors.Join(fmt.Errorf("the hypervisor has not answered for %s", age.Round(time.Second)), p.err)
	}
	return nil
}

// Alive returns an error if a call does not return, not even with an error.
func (p *Pulse) Alive(*http.Request) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.asked.IsZero() {
		return nil
	}
	if age := p.clock().Now().Sub(p.asked); age > or(p.Stuck, defaultStuck) {
		return fmt.Errorf("a call to the hypervisor has not returned for %s", age.Round(time.Second))
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

// Metrics returns a Prometheus collector of the last answer.
func (p *Pulse) Metrics() *measure.Set {
	s := &measure.Set{}
	s.ReadGauge(measure.Family{
		Name: "virtloom_node_hypervisor_answers", Bound: "1", Help: "Whether the hypervisor answered the last call.",
	}, func(emit measure.Emit) {
		answers, _ := p.last()
		emit(answers)
	})
	s.ReadGauge(measure.Family{
		Name: "virtloom_node_hypervisor_last_answer_timestamp_seconds", Bound: "1",
		Help: "Time of the hypervisor's last answer, in seconds since 1970; 0 if there was none yet.",
	}, func(emit measure.Emit) {
		_, at := p.last()
		emit(at)
	})
	return s
}

// last returns 1 if the last call was answered, else 0, and the time of the last answer.
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
