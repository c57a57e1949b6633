// SPDX-License-Identifier: Apache-2.0

// Package events sends the events of refdaemon's controllers to the API server.
//
// They have a client of their own, with its own rate limit: events are for people, and a thousand VMIs that start at once
// must not wait behind their events. So after a burst events arrive late; those beyond [Waiting] are only logged.
package events

import (
	"context"
	"fmt"
	"sync/atomic"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/types"
	eventsclient "k8s.io/client-go/kubernetes/typed/events/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/flowcontrol"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/recorder"
)

// waiting is the maximum number of queued events, each of some 10 KiB.
const waiting = 5000

// Rate limits the number of events.
type Rate struct {
	// QPS is the sustained number per second; Burst is the number at once.
	QPS   float32
	Burst int
}

// Start sends events at that rate, with the other settings of c, until ctx ends. Events that are queued then are dropped.
// Warnings have a limit of their own of the same rate, so that they do not queue behind normal events.
func Start(ctx context.Context, c *rest.Config, rate Rate) (events.EventBroadcaster, error) {
	c = rest.CopyConfig(c)
	c.QPS, c.RateLimiter = -1, nil // the sink limits the rate
	client, err := eventsclient.NewForConfig(c)
	if err != nil {
		return nil, fmt.Errorf("create the client of events: %w", err)
	}
	return startBroadcaster(ctx, &events.EventSinkImpl{Interface: client}, rate)
}

func startBroadcaster(ctx context.Context, to events.EventSink, rate Rate) (events.EventBroadcaster, error) {
	b := events.NewBroadcaster(newPaced(logr.FromContextOrDiscard(ctx), to, rate))
	if err := b.StartRecordingToSinkWithContext(ctx); err != nil {
		return nil, fmt.Errorf("start recording events: %w", err)
	}
	if _, err := b.StartLogging(logr.FromContextOrDiscard(ctx).V(1)); err != nil {
		return nil, fmt.Errorf("start logging events: %w", err)
	}
	return b, nil
}

// paced is a sink with a rate limit. It returns no error for an event that it drops: the caller could not handle one.
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

// Create implements events.EventSink: it waits for the rate limit.
func (p *paced) Create(ctx context.Context, e *eventsv1.Event) (*eventsv1.Event, error) {
	defer p.waiting.Add(-1)
	if p.waiting.Add(1) > waiting {
		p.log.Info("Dropping event, as too many are queued; raise events.qps", "type", e.Type, "reason", e.Reason,
			"kind", e.Regarding.Kind, "regarding", types.NamespacedName{Namespace: e.Regarding.Namespace, Name: e.Regarding.Name}, "note", e.Note)
		return e, nil
	}
	if p.limiter(e).Wait(ctx) != nil {
		return e, nil // the process is terminating
	}
	return p.EventSink.Create(ctx, e)
}

// Patch implements events.EventSink: it records a repetition of an event, at once or not at all, as the broadcaster blocks
// meanwhile.
func (p *paced) Patch(ctx context.Context, e *eventsv1.Event, data []byte) (*eventsv1.Event, error) {
	if !p.limiter(e).TryAccept() {
		return e, nil
	}
	return p.EventSink.Patch(ctx, e, data)
}

// Manager is a manager whose recorders use another broadcaster.
type Manager struct {
	manager.Manager
	// Events is the broadcaster that [Start] returned.
	Events events.EventBroadcaster
}

// GetEventRecorder returns the event recorder of the named controller.
func (m Manager) GetEventRecorder(name string) recorder.EventRecorder {
	if r, can := m.Events.NewRecorder(m.GetScheme(), name).(recorder.EventRecorder); can {
		return r
	}
	return m.Manager.GetEventRecorder(name)
}
