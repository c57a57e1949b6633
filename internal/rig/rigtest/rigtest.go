// SPDX-License-Identifier: Apache-2.0

// Package rigtest gives a test a rig of its own.
package rigtest

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/virtloom/virtloom/internal/rig"
)

// stopTimeout bounds the clean-up of a test.
const stopTimeout = time.Minute

// Need keeps what needs the programs of "make setup", root or libvirt out of unit tests: it skips the
// test in short mode, and where the programs are not there. In continuous integration, where the
// environment variable CI is set, a missing program fails the test.
func Need(t testing.TB) {
	t.Helper()
	if testing.Short() {
		t.Skip("an integration test: run it without -short")
	}
	switch _, err := rig.FindPrograms(); {
	case err == nil:
	case os.Getenv("CI") == "":
		t.Skip(err)
	default:
		t.Fatal(err)
	}
}

// New starts a rig without nodes for the test and stops it when the test is over. When the test has
// failed by then, the logs of the rig stay and the test says where. Where there can be no rig, Need
// says what becomes of the test; a rig that does not start fails it.
func New(t testing.TB) *rig.Rig {
	t.Helper()
	return Start(t, rig.Options{})
}

// Start is New with options. Options.Log is the test's log unless set.
func Start(t testing.TB, o rig.Options) *rig.Rig {
	t.Helper()
	Need(t)
	if o.Log == nil {
		o.Log = t.Logf
	}
	r, err := rig.Start(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			r.Keep()
			t.Logf("the logs of the rig are in %s/log", r.Dir())
		}
		ctx, cancel := context.WithTimeout(context.Background(), stopTimeout)
		defer cancel()
		if err := r.Stop(ctx); err != nil {
			t.Error(err)
		}
	})
	return r
}
