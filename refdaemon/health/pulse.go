// SPDX-License-Identifier: Apache-2.0

package health

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/utils/clock"
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
// manager. It is a collector of Prometheus, too:
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

var (
	answersDesc = prometheus.NewDesc("virtloom_node_hypervisor_answers",
		"Whether the hypervisor has answered the last question.", nil, nil)
	lastDesc = prometheus.NewDesc("virtloom_node_hypervisor_last_answer_timestamp_seconds",
		"When the hypervisor has answered last; 0 if it has not yet.", nil, nil)
)

// Describe implements prometheus.Collector.
func (*Pulse) Describe(ch chan<- *prometheus.Desc) {
	ch <- answersDesc
	ch <- lastDesc
}

// Collect implements prometheus.Collector.
func (p *Pulse) Collect(ch chan<- prometheus.Metric) {
	p.mu.Lock()
	defer p.mu.Unlock()
	answers, last := 0.0, 0.0
	if !p.answered.IsZero() {
		last = float64(p.answered.UnixMilli()) / 1000
		if p.err == nil {
			answers = 1
		}
	}
	ch <- prometheus.MustNewConstMetric(answersDesc, prometheus.GaugeValue, answers)
	ch <- prometheus.MustNewConstMetric(lastDesc, prometheus.GaugeValue, last)
}
