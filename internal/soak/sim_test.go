// SPDX-License-Identifier: Apache-2.0

package soak_test

import (
	"encoding/json"
	"flag"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/virtloom/virtloom/internal/soak"
)

// window is for how long there are operations and faults until everything has to come to rest.
const window = 30 * time.Minute

var (
	span  = flag.Duration("span", 6*time.Minute, "how much time is simulated")
	seed  = flag.Uint64("seed", 1, "what happens")
	steps = flag.Bool("steps", false, "tell every step")
)

// quiet silences the daemons. What client-go does to errors besides goes by when the last one was, in real time.
func quiet(t *testing.T) {
	ctrl.SetLogger(logr.Discard())
	klog.SetLogger(logr.Discard())
	was := utilruntime.ErrorHandlers
	utilruntime.ErrorHandlers = nil
	t.Cleanup(func() { utilruntime.ErrorHandlers = was })
}

func TestSoak(t *testing.T) {
	quiet(t)
	dir, begun := t.TempDir(), time.Now()
	var r soak.Report
	synctest.Test(t, func(t *testing.T) {
		o := soak.Options{Seed: *seed, Nodes: 4, Guests: 12, Pause: 15 * time.Second, FaultPause: 40 * time.Second, Dir: dir}
		if *steps {
			o.Log = t.Logf
		}
		w, err := soak.NewWorld(t.Context(), o)
		if err != nil {
			t.Fatal(err)
		}
		r, err = w.Run(t.Context(), *span, min(*span, window))
		if err != nil {
			t.Errorf("%v\nthe last steps:\n  %s", err, strings.Join(w.Steps(), "\n  "))
		}
		if err := w.Close(); err != nil {
			t.Errorf("at the end: %v", err)
		}
	})
	for _, wrong := range r.Wrong {
		t.Error(wrong)
	}
	text, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%s took %s:\n%s", r.Span, time.Since(begun).Round(time.Second/10), text)
	if t.Failed() {
		t.Logf("to run it again: make soak SEED=%d SPAN=%s", *seed, *span)
	}
}
