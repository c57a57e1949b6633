// SPDX-License-Identifier: Apache-2.0

// Package rigtest gives a test a rig of its own.
package rigtest

import (
	"context"
	"testing"
	"time"

	"github.com/virtloom/virtloom/internal/rig"
)

// stopTimeout bounds the clean-up of a test.
const stopTimeout = time.Minute

// New starts a rig without nodes for the test and stops it when the test is over. When the test has
// failed by then, the logs of the rig stay and the test says where. A rig that cannot be started
// fails the test, also on a machine that lacks its programs: "make setup" builds them.
func New(t testing.TB) *rig.Rig {
	t.Helper()
	return Start(t, rig.Options{})
}

// Start is New with options. Options.Log is the test's log unless set.
func Start(t testing.TB, o rig.Options) *rig.Rig {
	t.Helper()
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
