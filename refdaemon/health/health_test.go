// SPDX-License-Identifier: Apache-2.0

package health_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/virtloom/virtloom/refdaemon/health"
)

type synced bool

func (s synced) WaitForCacheSync(ctx context.Context) bool {
	if !s {
		<-ctx.Done()
	}
	return bool(s)
}

// request is a probe that gives up at once.
func request(t *testing.T) *http.Request {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	return httptest.NewRequestWithContext(ctx, http.MethodGet, "/readyz", nil)
}

// says fails unless an error says what it is to say; nothing if that is empty.
func says(t *testing.T, what string, err error, want string) {
	t.Helper()
	if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
		t.Errorf("%s: error %v, want %q", what, err, want)
	}
}

func TestCaches(t *testing.T) {
	says(t, "synced", health.Caches(synced(true))(request(t)), "")
	says(t, "not synced", health.Caches(synced(false))(request(t)), "not synced yet")
}

func TestContact_Lease(t *testing.T) {
	for name, tt := range map[string]struct {
		status int // no answer if zero
		age    time.Duration
		want   string
	}{
		"never asked":        {status: -1, want: "yet"},
		"read":               {status: 200},
		"made":               {status: 201, age: 30 * time.Second},
		"not there yet":      {status: 404},
		"of another":         {status: 409},
		"long ago":           {status: 200, age: 31 * time.Second, want: "for 31s"},
		"forbidden":          {status: 403, want: "yet"},
		"the server is ill":  {status: 503, want: "yet"},
		"the server is gone": {want: "yet"},
	} {
		clock := clocktesting.NewFakePassiveClock(time.Unix(1000, 0))
		c := &health.Contact{Clock: clock}
		client := http.Client{Transport: c.Wrap(answer(tt.status))}
		if tt.status >= 0 {
			req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://example.test", nil)
			if err != nil {
				t.Fatal(err)
			}
			resp, err := client.Do(req)
			if (err == nil) != (tt.status > 0) {
				t.Fatal(err)
			}
			if err == nil {
				_ = resp.Body.Close()
			}
		}
		clock.SetTime(clock.Now().Add(tt.age))
		says(t, name, c.Check(nil), tt.want)
	}
}

// answer is a server with one status.
type answer int

func (a answer) RoundTrip(req *http.Request) (*http.Response, error) {
	if a == 0 {
		return nil, errors.New("no route")
	}
	return &http.Response{StatusCode: int(a), Body: http.NoBody, Request: req}, nil
}

// patient puts questions that are answered as the test says.
type patient struct {
	*health.Pulse
	clock   *clocktesting.FakeClock
	asked   chan struct{}
	answers chan error
}

func newPatient(t *testing.T) *patient {
	t.Helper()
	p := &patient{clock: clocktesting.NewFakeClock(time.Unix(1000, 0)), asked: make(chan struct{}), answers: make(chan error)}
	p.Pulse = &health.Pulse{Clock: p.clock, Ask: func(ctx context.Context) error {
		select {
		case p.asked <- struct{}{}:
			return <-p.answers
		case <-ctx.Done():
			return ctx.Err()
		}
	}}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- p.Start(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return p
}

func (p *patient) metrics(t *testing.T) (answers, last float64) {
	t.Helper()
	r := prometheus.NewPedanticRegistry()
	if err := r.Register(p.Metrics()); err != nil {
		t.Fatal(err)
	}
	all, err := r.Gather()
	if err != nil || len(all) != 2 {
		t.Fatalf("error %v, metrics %v", err, all)
	}
	return all[0].GetMetric()[0].GetGauge().GetValue(), all[1].GetMetric()[0].GetGauge().GetValue()
}

func TestPulse(t *testing.T) {
	p := newPatient(t)
	<-p.asked
	says(t, "before the first answer", p.Ready(nil), "not answered yet")
	says(t, "before the first answer, alive", p.Alive(nil), "")
	if answers, last := p.metrics(t); answers != 0 || last != 0 {
		t.Errorf("metrics are %v and %v", answers, last)
	}
	p.answers <- nil
	p.clock.Step(health.DefaultEvery)
	<-p.asked // so the first is noted
	says(t, "answered", p.Ready(nil), "")
	if answers, last := p.metrics(t); answers != 1 || last != 1000 && last != 1010 {
		t.Errorf("metrics are %v and %v", answers, last)
	}

	p.answers <- errors.New("connection refused")
	p.clock.Step(health.DefaultEvery)
	<-p.asked
	says(t, "one error", p.Ready(nil), "")
	if answers, _ := p.metrics(t); answers != 0 {
		t.Error("an error counts as an answer")
	}
	p.clock.Step(time.Minute)
	says(t, "silent", p.Ready(nil), "connection refused")
	says(t, "silent, alive", p.Alive(nil), "")
	p.clock.Step(5 * time.Minute)
	says(t, "stuck", p.Alive(nil), "has not returned for 6m")
	p.answers <- nil
	p.clock.Step(health.DefaultEvery)
	<-p.asked
	says(t, "well again", p.Ready(nil), "")
	says(t, "well again, alive", p.Alive(nil), "")
	p.answers <- nil
}
