// SPDX-License-Identifier: Apache-2.0

package rigtest

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/testr"
	"k8s.io/apimachinery/pkg/util/wait"
)

// Run runs start, such as the method of a manager, until stop is called or the test is over. Both wait for its end,
// and an error of it fails the test.
func Run(t testing.TB, start func(context.Context) error) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- start(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("manager: %v", err)
		}
	})
	t.Cleanup(stop)
	return stop
}

// Logger returns a logger that writes to the test's log with -v, and nowhere without.
func Logger(t testing.TB) logr.Logger {
	if testing.Verbose() {
		return testr.NewWithInterface(t, testr.Options{})
	}
	return logr.Discard()
}

// Poll calls done until it reports true, returns an error, or the time is over: soon again at first, and then more and more seldom. A
// test asks an API server, and dozens of tests that ask it fifty times a second take more of the machine than what they wait for.
func Poll(ctx context.Context, within time.Duration, done wait.ConditionWithContextFunc) error {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	delay := wait.Backoff{Duration: 20 * time.Millisecond, Factor: 1.2, Steps: 20, Cap: 200 * time.Millisecond}
	return delay.DelayFunc().Until(ctx, true, true, done)
}

// Eventually polls look until it returns "", and fails the test with its last result when the patience ends.
func Eventually(t testing.TB, patience time.Duration, look func() string) {
	t.Helper()
	var last string
	err := Poll(t.Context(), patience, func(context.Context) (bool, error) {
		last = look()
		return last == "", nil
	})
	if err != nil {
		t.Fatalf("%v: %s", err, last)
	}
}
