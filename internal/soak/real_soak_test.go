// SPDX-License-Identifier: Apache-2.0

package soak_test

import (
	"context"
	"flag"
	"path/filepath"
	"testing"
	"time"

	"github.com/virtloom/virtloom/internal/rig"
	"github.com/virtloom/virtloom/internal/rig/rigtest"
	"github.com/virtloom/virtloom/internal/soak"
)

var (
	realTime = flag.Duration("real", 0, "for how long TestSoak_Real runs")
	windowOf = flag.Duration("window", 0, "time of operations and faults from one rest of TestSoak_Real to the next; 0 is a twentieth of its time")
)

// TestSoak_Real needs refdaemon in the folder of programs.
func TestSoak_Real(t *testing.T) {
	if *realTime <= 0 {
		t.Skip("takes an hour: run by make nightly")
	}
	rigtest.Need(t)
	bin, err := rig.BinDir()
	if err != nil {
		t.Fatal(err)
	}
	o := soak.RealOptions{
		Seed: *seed, Duration: *realTime, Window: *windowOf, Nodes: 4, Guests: 15,
		Pause: 800 * time.Millisecond, FaultPause: 8 * time.Second, Daemon: filepath.Join(bin, "refdaemon"), Log: t.Logf,
	}
	if o.Window <= 0 {
		o.Window = o.Duration / 20
	}
	quiet(t)
	r, err := soak.NewReal(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	report, err := r.Run(t.Context())
	if err != nil || len(report.Wrong) > 0 {
		t.Errorf("%v; the logs are in %s", err, r.Keep())
	}
	if err := r.Close(context.WithoutCancel(t.Context())); err != nil {
		t.Errorf("at the end: %v", err)
	}
	for _, wrong := range report.Wrong {
		t.Error(wrong)
	}
	if err := report.Print(t.Output()); err != nil {
		t.Error(err)
	}
}
