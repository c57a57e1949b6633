// SPDX-License-Identifier: Apache-2.0

package events

import (
	"context"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/manager"
)

// scheme is a manager that has no more than a scheme.
type scheme struct{ manager.Manager }

func (scheme) GetScheme() *runtime.Scheme { return clientgoscheme.Scheme }

func about(name string) *corev1.Pod {
	p := &corev1.Pod{}
	p.Namespace, p.Name, p.UID = "ns", name, "uid"
	return p
}

// server is an API server that takes so many events, and then none for ever.
func server(t *testing.T, takes int) (*rest.Config, chan string) {
	t.Helper()
	got := make(chan string, takes)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got <- r.Method + " " + r.URL.Path
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusCreated)
		if _, err := w.Write([]byte(`{"kind":"Event","apiVersion":"events.k8s.io/v1"}`)); err != nil {
			t.Log(err)
		}
	}))
	t.Cleanup(s.Close)
	return &rest.Config{Host: s.URL, QPS: 1e6, Burst: 1e6}, got
}

func TestStart_Rate(t *testing.T) {
	config, got := server(t, 100)
	// The third would come after a day.
	b, err := Start(t.Context(), config, Rate{QPS: 1. / 86400, Burst: 2})
	if err != nil {
		t.Fatal(err)
	}
	r := Manager{Manager: scheme{}, Events: b}.GetEventRecorder("test")
	for _, name := range []string{"a", "b", "c", "d"} {
		r.Eventf(about(name), nil, corev1.EventTypeNormal, "Reason", "Act", "something of %s", name)
	}
	r.AnnotatedEventf(about("e"), nil, map[string]string{"key": "value"}, corev1.EventTypeNormal, "Reason", "Act", "something")
	for range 2 {
		if is := <-got; is != "POST /apis/events.k8s.io/v1/namespaces/ns/events" {
			t.Errorf("asked for %s", is)
		}
	}
	select {
	case is := <-got:
		t.Errorf("%s beyond the burst", is)
	default:
	}
	if config.QPS != 1e6 {
		t.Error("the rate of other requests was changed")
	}
}

func TestStart_InvalidServer(t *testing.T) {
	if _, err := Start(t.Context(), &rest.Config{Host: "http://[::1"}, Rate{QPS: 1, Burst: 1}); err == nil {
		t.Error("an address that cannot be read is taken")
	}
}

// stuck is where events wait until they are let go.
type stuck struct{ in, free chan struct{} }

func (s *stuck) Create(_ context.Context, e *eventsv1.Event) (*eventsv1.Event, error) {
	s.in <- struct{}{}
	<-s.free
	return e, nil
}

func (s *stuck) Update(ctx context.Context, e *eventsv1.Event) (*eventsv1.Event, error) {
	return s.Create(ctx, e)
}

func (s *stuck) Patch(ctx context.Context, e *eventsv1.Event, _ []byte) (*eventsv1.Event, error) {
	return s.Create(ctx, e)
}

func TestPaced_LimitsWaiting(t *testing.T) {
	to := &stuck{in: make(chan struct{}, waiting+3), free: make(chan struct{})}
	var logged atomic.Int64
	log := funcr.New(func(string, string) { logged.Add(1) }, funcr.Options{})
	p := newPaced(log, to, Rate{QPS: 1, Burst: waiting + 3})
	var all sync.WaitGroup
	create := func() {
		if _, err := p.Create(t.Context(), &eventsv1.Event{}); err != nil {
			t.Error(err)
		}
	}
	for range waiting {
		all.Go(create)
	}
	for range waiting {
		<-to.in
	}
	if create(); logged.Load() != 1 || len(to.in) != 0 {
		t.Errorf("%d events are logged, %d beyond the limit sent", logged.Load(), len(to.in))
	}
	close(to.free)
	all.Wait()
	if create(); logged.Load() != 1 || len(to.in) != 1 {
		t.Error("the queue is empty, and an event is not sent")
	}
}

// Warnings do not wait behind normal events, a repetition does not wait, and the end of the context ends all waits.
func TestPaced_Order(t *testing.T) {
	to := &stuck{in: make(chan struct{}, 9), free: make(chan struct{})}
	close(to.free)
	p := newPaced(logr.Discard(), to, Rate{QPS: 1. / 86400, Burst: 1})
	normal, warning := &eventsv1.Event{Type: corev1.EventTypeNormal}, &eventsv1.Event{Type: corev1.EventTypeWarning}
	ended, end := context.WithCancel(t.Context())
	end()
	for _, step := range []struct {
		what  string
		write func() (*eventsv1.Event, error)
		sent  int
	}{
		{"the first", func() (*eventsv1.Event, error) { return p.Create(t.Context(), normal) }, 1},
		{"a repetition that would wait", func() (*eventsv1.Event, error) { return p.Patch(t.Context(), normal, nil) }, 1},
		{"one that would wait, at the end", func() (*eventsv1.Event, error) { return p.Create(ended, normal) }, 1},
		{"a repeated warning", func() (*eventsv1.Event, error) { return p.Patch(t.Context(), warning, nil) }, 2},
	} {
		if _, err := step.write(); err != nil || len(to.in) != step.sent {
			t.Errorf("%s: %d are sent, want %d (%v)", step.what, len(to.in), step.sent, err)
		}
	}
}
