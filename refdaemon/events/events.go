// SPDX-License-Identifier: Apache-2.0

// Package events is how refdaemon tells the events of its controllers to the API server.
//
// They have a client of their own, with a rate of its own: an event is for people, and a thousand guests that are
// started at once shall not wait behind what is told of them. So after many at once events come late; those beyond [Waiting] are told in the log alone.
package events

import (
	"context"
	"fmt"
	"sync/atomic"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	eventsclient "k8s.io/client-go/kubernetes/typed/events/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/flowcontrol"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/recorder"
)

// Waiting is how many events wait for their turn at most, each with some 10 KiB.
const Waiting = 5000

// Rate is how many events are told.
type Rate struct {
	// QPS is how many a second, in the long run; Burst is how many at once.
	QPS   float32
	Burst int
}

// Start begins to tell events at that rate, with c else, until ctx ends. What waits then is not told any more. Warnings
// have the same rate once more: nobody looks for trouble behind a thousand good news.
func Start(ctx context.Context, c *rest.Config, rate Rate) (events.EventBroadcaster, error) {
	c = rest.CopyConfig(c)
	c.QPS, c.RateLimiter = -1, nil // the sink has limits
	client, err := eventsclient.NewForConfig(c)
	if err != nil {
		return nil, fmt.Errorf("make the client of events: %w", err)
	}
	return start(ctx, &events.EventSinkImpl{Interface: client}, rate)
}

func start(ctx context.Context, to events.EventSink, rate Rate) (events.EventBroadcaster, error) {
	b := events.NewBroadcaster(newPaced(logr.FromContextOrDiscard(ctx), to, rate))
	if err := b.StartRecordingToSinkWithContext(ctx); err != nil {
		return nil, fmt.Errorf("start to tell events: %w", err)
	}
	if _, err := b.StartLogging(logr.FromContextOrDiscard(ctx).V(1)); err != nil {
		return nil, fmt.Errorf("start to log events: %w", err)
	}
	return b, nil
}

// paced is a sink with a rate. An event that it does not tell counts as told: who asks has nothing else to do about it.
type paced struct {
	events.EventSink
	log              logr.Logger
	normal, warnings flowcontrol.RateLimiter
	waiting          atomic.Int64
}

func newPaced(log logr.Logger, to events.EventSink, rate Rate) *paced {
	return &paced{
		EventSink: to, log: log,
		normal:   flowcontrol.NewTokenBucketRateLimiter(rate.QPS, rate.Burst),
		warnings: flowcontrol.NewTokenBucketRateLimiter(rate.QPS, rate.Burst),
	}
}

func (p *paced) limiter(e *eventsv1.Event) flowcontrol.RateLimiter {
	if e.Type == corev1.EventTypeWarning {
		return p.warnings
	}
	return p.normal
}

// Create implements events.EventSink: it waits for its turn.
func (p *paced) Create(ctx context.Context, e *eventsv1.Event) (*eventsv1.Event, error) {
	defer p.waiting.Add(-1)
	if p.waiting.Add(1) > Waiting {
		p.log.Info("An event is told here alone, as too many wait; raise events.qps", "type", e.Type, "reason", e.Reason,
			"kind", e.Regarding.Kind, "namespace", e.Regarding.Namespace, "name", e.Regarding.Name, "note", e.Note)
		return e, nil
	}
	if p.limiter(e).Wait(ctx) != nil {
		return e, nil // the process ends
	}
	return p.EventSink.Create(ctx, e)
}

// Patch implements events.EventSink: it tells that an event happened again, now or not at all, as the broadcaster lets
// nobody else in meanwhile.
func (p *paced) Patch(ctx context.Context, e *eventsv1.Event, data []byte) (*eventsv1.Event, error) {
	if !p.limiter(e).TryAccept() {
		return e, nil
	}
	return p.EventSink.Patch(ctx, e, data)
}

// Manager is a manager whose recorders tell events by another broadcaster.
type Manager struct {
	manager.Manager
	// Events is what [Start] returned.
	Events events.EventBroadcaster
}

// GetEventRecorder returns a recorder of what a controller of that name tells.
func (m Manager) GetEventRecorder(name string) recorder.EventRecorder {
	if r, can := m.Events.NewRecorder(m.GetScheme(), name).(recorder.EventRecorder); can {
		return r
	}
	return m.Manager.GetEventRecorder(name)
}
