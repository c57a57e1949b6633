// SPDX-License-Identifier: Apache-2.0

package events

import (
	"context"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
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

func TestEventsAreToldAtTheirOwnRate(t *testing.T) {
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

func TestAWrongServerIsRefused(t *testing.T) {
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

func TestNoMoreEventsWaitThanThereIsRoomFor(t *testing.T) {
	to := &stuck{in: make(chan struct{}, Waiting+3), free: make(chan struct{})}
	b := &bounded{EventSink: to}
	var all sync.WaitGroup
	for range Waiting {
		all.Go(func() {
			if _, err := b.Create(t.Context(), &eventsv1.Event{}); err != nil {
				t.Error(err)
			}
		})
	}
	for range Waiting {
		<-to.in
	}
	for name, write := range map[string]func() (*eventsv1.Event, error){
		"create": func() (*eventsv1.Event, error) { return b.Create(t.Context(), &eventsv1.Event{}) },
		"patch":  func() (*eventsv1.Event, error) { return b.Patch(t.Context(), &eventsv1.Event{}, nil) },
	} {
		if _, err := write(); !apierrors.IsTooManyRequests(err) {
			t.Errorf("%s: %v, want it to be refused", name, err)
		}
	}
	close(to.free)
	all.Wait()
	if _, err := b.Create(t.Context(), &eventsv1.Event{}); err != nil {
		t.Errorf("nothing waits any more: %v", err)
	}
}
