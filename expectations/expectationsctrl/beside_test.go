// SPDX-License-Identifier: Apache-2.0

package expectationsctrl_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/virtloom/virtloom/expectations"
)

// lostAnswers carries out creations of Pods named lost, and drops the server's answer.
type lostAnswers struct{ http.RoundTripper }

func (l lostAnswers) RoundTrip(r *http.Request) (*http.Response, error) {
	body := ""
	if r.Method == http.MethodPost && strings.HasSuffix(r.URL.Path, "/pods") && r.GetBody != nil {
		b, err := r.GetBody()
		if err != nil {
			return nil, err
		}
		text, err := io.ReadAll(b)
		if err != nil {
			return nil, err
		}
		body = string(text)
	}
	response, err := l.RoundTripper.RoundTrip(r)
	if err == nil && strings.Contains(body, "lost-") {
		_ = response.Body.Close()
		return nil, io.ErrUnexpectedEOF
	}
	return response, err
}

// beside compares a gate with controller-runtime's EnableReadYourWritesConsistency, on one cache that lags behind.
func beside(t *testing.T, config *rest.Config) {
	losing := rest.CopyConfig(config)
	losing.Wrap(func(next http.RoundTripper) http.RoundTripper { return lostAnswers{next} })
	s := newStage(t, losing, "beside", staging{sample: &corev1.Pod{}, cache: cache.Options{
		DefaultNamespaces: map[string]cache.Config{"beside": {}},
	}})
	consistent := true
	reading, err := client.New(losing, client.Options{Cache: &client.CacheOptions{Reader: s.shows, EnableReadYourWritesConsistency: &consistent}})
	must(t, err)
	gated := s.gate.For(owner)
	list := func(ctx context.Context) (int, error) {
		var pods corev1.PodList
		err := reading.List(ctx, &pods, client.InNamespace("beside"))
		return len(pods.Items), err
	}
	if n, err := list(t.Context()); n != 0 || err != nil {
		t.Fatalf("%d Pods, %v before there are any", n, err)
	}
	s.shut()
	shut := true
	defer func() {
		if shut {
			s.open()
		}
	}()

	// A creation that is carried out and whose answer is lost: the reader sees no Pod, the gate has its owner wait.
	if err := reading.Create(t.Context(), idle("beside", "lost-reading")); err == nil {
		t.Fatal("the answer was not lost")
	}
	if n, err := list(t.Context()); n != 0 || err != nil {
		t.Errorf("a client that reads its writes lists %d Pods, %v: it awaits what it has no answer to", n, err)
	}
	if err := gated.Create(t.Context(), idle("beside", "lost-gated")); err == nil {
		t.Fatal("the answer was not lost")
	}
	s.expect(t, "an answer that was lost", expectations.Waiting)

	// One that is answered: the reader blocks every list of Pods until the cache has caught up, the gate holds back its
	// owner alone, and its worker is free meanwhile.
	must(t, reading.Create(t.Context(), idle("beside", "answered")))
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if n, err := list(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%d Pods, %v while the cache lags behind, want %v", n, err, context.DeadlineExceeded)
	}
	other := owner
	other.Key.Name, other.UID = "other", "uid-of-other"
	if v, err := s.gate.Check(t.Context(), other); err != nil || !v.Satisfied() {
		t.Errorf("another owner: %s, %v", v.State, err)
	}
	s.open()
	shut = false
	s.awaitWake(t)
	s.expect(t, "what the cache shows", expectations.Satisfied)
	eventually(t, "the reader sees them", func(ctx context.Context) (bool, error) {
		n, err := list(ctx)
		return n == 3, err
	})
}
