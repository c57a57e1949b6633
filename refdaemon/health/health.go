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
	// syncWait is how long a probe waits for the caches to answer.
	syncWait = time.Second
	// DefaultLeaseWithin is how long a lease may be out of reach: twice the time for which one is
	// held. Replicas look at it every few seconds.
	DefaultLeaseWithin = 30 * time.Second
)

// Syncer is a cache, as far as it matters here.
type Syncer interface {
	// WaitForCacheSync tells whether all that is watched is known; it waits for that until ctx ends.
	WaitForCacheSync(ctx context.Context) bool
}

// Caches is sound once the caches show the cluster.
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

// Contact looks after a client that reads or renews something all the time, such as the lease of a
// leader election.
type Contact struct {
	// Within is how old the last answer may be. Defaults to DefaultLeaseWithin.
	Within time.Duration
	// Clock defaults to the real one.
	Clock clock.PassiveClock

	mu   sync.Mutex
	last time.Time // guarded by mu
}

// Wrap lets the contact see what the client is answered.
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

// answers tells whether a status is an answer about the object: also that it is not there yet, or
// that another was quicker.
func answers(status int) bool {
	return status < http.StatusMultipleChoices || status == http.StatusNotFound || status == http.StatusConflict
}

// Check is sound while there are answers.
func (c *Contact) Check(*http.Request) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.last.IsZero() {
		return errors.New("the lease could not be read or written yet")
	}
	within := c.Within
	if within <= 0 {
		within = DefaultLeaseWithin
	}
	if age := c.now().Sub(c.last); age > within {
		return fmt.Errorf("the lease could not be read or written for %s", age.Round(time.Second))
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
