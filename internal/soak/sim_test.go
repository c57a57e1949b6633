// SPDX-License-Identifier: Apache-2.0

package soak_test

import (
	"encoding/json"
	"flag"
	"runtime"
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
	steps = flag.Bool("steps", false, "log every step")
)

// quiet silences the daemons. What client-go does to errors besides goes by when the last one was, in real time.
func quiet(t *testing.T) {
	ctrl.SetLogger(logr.Discard())
	klog.SetLogger(logr.Discard())
	was := utilruntime.ErrorHandlers
	utilruntime.ErrorHandlers = nil
	t.Cleanup(func() { utilruntime.ErrorHandlers = was })
}

// bubble runs a test in a bubble. The goroutines that client-go leaves behind for watches of metadata which are given up
// with an event in them (watch.Filter) may be left at the end, no others.
func bubble(t *testing.T, f func(*testing.T)) {
	t.Helper()
	defer func() {
		r := recover()
		if r == nil {
			return
		}
		text := make([]byte, 16<<20)
		left := 0
		for _, g := range strings.Split(string(text[:runtime.Stack(text, true)]), "\n\n") {
			switch head, _, _ := strings.Cut(g, "\n"); {
			case !strings.Contains(head, "synctest bubble"):
			case strings.Contains(g, "watch.(*filteredWatch).loop"):
				left++
			default:
				panic(r)
			}
		}
		t.Logf("client-go has left %d goroutines: %v", left, r)
	}()
	synctest.Test(t, f)
}

func TestSoak(t *testing.T) {
	quiet(t)
	dir, begun := t.TempDir(), time.Now()
	var r soak.Report
	bubble(t, func(t *testing.T) {
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
		t.Logf("to run it again: -seed %d -span %s", *seed, *span)
	}
}
