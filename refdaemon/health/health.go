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
)

const (
	// syncWait is the time for which a probe waits for the caches.
	syncWait = time.Second
	// defaultLeaseWithin is how long a lease may be out of reach: twice the time for which one is
	// held. Replicas look at it every few seconds.
	defaultLeaseWithin = 30 * time.Second
)

// Syncer is the part of a cache that probes need.
type Syncer interface {
	// WaitForCacheSync waits until all informers are synced, or ctx ends, and reports whether they are.
	WaitForCacheSync(ctx context.Context) bool
}

// Caches returns a probe that succeeds once the caches are synced.
func Caches(c Syncer) func(*http.Request) error {
	return func(req *http.Request) error {
		ctx, cancel := context.WithTimeout(req.Context(), syncWait)
		defer cancel()
		if !c.WaitForCacheSync(ctx) {
			return errors.New("caches are not synced yet")
		}
		return nil
	}
}

// Contact checks a client that regularly reads or renews an object, such as the lease of a leader
// election. It is safe for concurrent use.
type Contact struct {
	// Within is the maximum age of the last answer. Defaults to 30 seconds.
	Within time.Duration
	// Clock defaults to the real one.
	Clock clock.PassiveClock

	mu   sync.Mutex
	last time.Time // guarded by mu
}

// Wrap returns a round tripper that records the answers to the client.
func (c *Contact) Wrap(next http.RoundTripper) http.RoundTripper {
	return tripper(func(req *http.Request) (*http.Response, error) {
		resp, err := next.RoundTrip(req)
		if err == nil && answers(resp.StatusCode) {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.last = c.now()
		}
		return resp, err
	})
}

// answers reports whether a status is an answer about the object, which includes not found and
// conflict.
func answers(status int) bool {
	return status < http.StatusMultipleChoices || status == http.StatusNotFound || status == http.StatusConflict
}

// Check returns an error if the last answer is too old.
func (c *Contact) Check(*http.Request) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.last.IsZero() {
		return errors.New("the lease has not been read or written yet")
	}
	within := c.Within
	if within <= 0 {
		within = defaultLeaseWithin
	}
	if age := c.now().Sub(c.last); age > within {
		return fmt.Errorf("the lease has not been read or written for %s", age.Round(time.Second))
	}
	return nil
}

func (c *Contact) now() time.Time {
	if c.Clock == nil {
		return clock.RealClock{}.Now()
	}
	return c.Clock.Now()
}

// tripper is a function that is an http.RoundTripper.
type tripper func(*http.Request) (*http.Response, error)

// RoundTrip implements http.RoundTripper.
func (f tripper) RoundTrip(req *http.Request) (*http.Response, error) { return f(req) }
