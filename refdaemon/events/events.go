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
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	eventsclient "k8s.io/client-go/kubernetes/typed/events/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/events"
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

// Start begins to tell events at that rate, with c else, until ctx ends. What waits then is not told any more.
func Start(ctx context.Context, c *rest.Config, rate Rate) (events.EventBroadcaster, error) {
	c = rest.CopyConfig(c)
	c.QPS, c.Burst, c.RateLimiter = rate.QPS, rate.Burst, nil
	client, err := eventsclient.NewForConfig(c)
	if err != nil {
		return nil, fmt.Errorf("make the client of events: %w", err)
	}
	return start(ctx, &events.EventSinkImpl{Interface: client})
}

func start(ctx context.Context, to events.EventSink) (events.EventBroadcaster, error) {
	b := events.NewBroadcaster(&bounded{EventSink: to})
	if err := b.StartRecordingToSinkWithContext(ctx); err != nil {
		return nil, fmt.Errorf("start to tell events: %w", err)
	}
	if _, err := b.StartLogging(logr.FromContextOrDiscard(ctx).V(1)); err != nil {
		return nil, fmt.Errorf("start to log events: %w", err)
	}
	return b, nil
}

// bounded refuses events when too many wait.
type bounded struct {
	events.EventSink
	waiting atomic.Int64
}

// Create implements events.EventSink.
func (b *bounded) Create(ctx context.Context, e *eventsv1.Event) (*eventsv1.Event, error) {
	return b.admit(func() (*eventsv1.Event, error) { return b.EventSink.Create(ctx, e) })
}

// Patch implements events.EventSink.
func (b *bounded) Patch(ctx context.Context, e *eventsv1.Event, data []byte) (*eventsv1.Event, error) {
	return b.admit(func() (*eventsv1.Event, error) { return b.EventSink.Patch(ctx, e, data) })
}

func (b *bounded) admit(write func() (*eventsv1.Event, error)) (*eventsv1.Event, error) {
	defer b.waiting.Add(-1)
	if b.waiting.Add(1) > Waiting {
		return nil, apierrors.NewTooManyRequestsError(fmt.Sprintf("%d events wait already; raise events.qps", Waiting))
	}
	return write()
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
