// SPDX-License-Identifier: Apache-2.0

package tracing_test

import (
	"bytes"
	"compress/gzip"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/virtloom/virtloom/internal/tracecontext"
	"github.com/virtloom/virtloom/refdaemon/tracing"
)

// collector takes what is sent to it.
type collector struct {
	*httptest.Server
	mu    sync.Mutex
	paths []string
	sent  bytes.Buffer
}

func newCollector(t *testing.T, status int) *collector {
	t.Helper()
	c := &collector{}
	c.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body := io.Reader(r.Body)
		if r.Header.Get("Content-Encoding") == "gzip" {
			if z, err := gzip.NewReader(r.Body); err == nil {
				body = z
			}
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		c.paths = append(c.paths, r.URL.Path)
		_, _ = io.Copy(&c.sent, body)
		w.WriteHeader(status)
	}))
	t.Cleanup(c.Close)
	return c
}

// emit begins and ends a span of that name in a trace that a remote parent says is sampled.
func emit(t *testing.T, name, traceparent string) {
	t.Helper()
	ctx := t.Context()
	if sc, ok := tracecontext.Parse(traceparent); ok {
		ctx = trace.ContextWithRemoteSpanContext(ctx, sc)
	}
	_, span := otel.GetTracerProvider().Tracer("test").Start(ctx, name)
	span.End()
}

func start(t *testing.T, o tracing.Options) (stop func() error) {
	t.Helper()
	t.Cleanup(func() { otel.SetTracerProvider(noop.NewTracerProvider()) })
	stop, err := tracing.Start(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	return stop
}

func TestStart_FileAndCollector(t *testing.T) {
	for name, tc := range map[string]struct{ path, want string }{
		"the usual path": {"", "/v1/traces"}, "a path of its own": {"/tenant/traces", "/tenant/traces"},
	} {
		t.Run(name, func(t *testing.T) {
			c, file := newCollector(t, http.StatusOK), filepath.Join(t.TempDir(), "spans")
			stop := start(t, tracing.Options{Service: "virtloom-test", File: file, Endpoint: c.URL + tc.path})
			emit(t, "a-span-of-mine", "")
			if err := stop(); err != nil {
				t.Fatal(err)
			}
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			for where, got := range map[string]string{"file": string(text), "collector": c.sent.String()} {
				if !strings.Contains(got, "a-span-of-mine") || !strings.Contains(got, "virtloom-test") {
					t.Errorf("the %s has %q", where, got)
				}
			}
			if len(c.paths) != 1 || c.paths[0] != tc.want {
				t.Errorf("it was sent to %v, want %s once", c.paths, tc.want)
			}
		})
	}
}

func TestSampler_RemoteParents(t *testing.T) {
	const rest = "-b7ad6b7169203331-01"
	// The sampler goes by the last eight bytes: this trace is beyond any small share.
	beyond, within := "00-0af7651916cd43ddffffffffffffffff"+rest, "00-0af7651916cd43dd0000000000000001"+rest
	file := filepath.Join(t.TempDir(), "spans")
	stop := start(t, tracing.Options{Service: "virtloom-test", File: file, Share: 0.01})
	emit(t, "beyond-the-share", beyond)
	emit(t, "within-the-share", within)
	emit(t, "not-sampled-there", within[:len(within)-1]+"0")
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]bool{"beyond-the-share": false, "within-the-share": true, "not-sampled-there": false} {
		if got := strings.Contains(string(text), name); got != want {
			t.Errorf("%s is exported: %v, want %v", name, got, want)
		}
	}
}

func TestStart_DisabledByDefault(t *testing.T) {
	was := otel.GetTracerProvider()
	stop := start(t, tracing.Options{Service: "virtloom-test"})
	if otel.GetTracerProvider() != was {
		t.Error("there is a provider of spans")
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
}

func TestStart_CollectorRefuses(t *testing.T) {
	c := newCollector(t, http.StatusBadRequest)
	stop := start(t, tracing.Options{Service: "virtloom-test", Endpoint: c.URL})
	emit(t, "a-span-of-mine", "")
	_ = stop() // it may say so, and returns
	if len(c.paths) == 0 {
		t.Error("nothing was sent")
	}
}

func TestOptions_Validate(t *testing.T) {
	for name, tc := range map[string]struct {
		o    tracing.Options
		want string
	}{
		"no scheme":        {tracing.Options{Endpoint: "collector:4318"}, "collector:4318"},
		"another protocol": {tracing.Options{Endpoint: "grpc://collector:4317"}, "grpc://"},
		"no host":          {tracing.Options{Endpoint: "https:///v1/traces"}, "https:///"},
		"no URL":           {tracing.Options{Endpoint: "http://[::1"}, "[::1"},
		"more than all":    {tracing.Options{Share: 1.5}, "1.5"},
		"less than none":   {tracing.Options{Share: -0.1}, "-0.1"},
		"no file":          {tracing.Options{File: "/nowhere/at/all"}, "/nowhere"},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := tracing.Start(t.Context(), tc.o); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error is %v, want one that names %q", err, tc.want)
			}
		})
	}
}
