// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/virtloom/virtloom/internal/refcluster"
)

const (
	// stopGrace bounds the end of a controller.
	stopGrace = 20 * time.Second
	// inbound is how many migrations may enter a node at a time: as many as may leave one, as stock
	// KubeVirt has no such limit.
	inbound = 50
	// profileSpan is how long one CPU profile lasts; a phase has several, which "go tool pprof" adds up.
	profileSpan = 5 * time.Second
)

// daemon is a "refdaemon controller" in a process of its own.
type daemon struct{ *refcluster.Controller }

// startDaemon starts a controller and waits until it is ready.
func (b *bench) startDaemon(ctx context.Context) (*daemon, error) {
	profiles := b.options.profiles != ""
	if profiles && !offers(ctx, b.options.daemon, "profiling-address") {
		b.logf("no profiles: %s has no --profiling-address", b.options.daemon)
		profiles = false
	}
	c, err := refcluster.RunController(ctx, b.rig, refcluster.ControllerOptions{
		Name: "refdaemon-controller", Program: b.options.daemon, Profiles: profiles,
		Args: append([]string{"--launcher-image", launcherImage, "--migrations-inbound-per-node", strconv.Itoa(inbound)}, b.options.daemonArgs...),
	})
	if err != nil {
		return nil, err
	}
	return &daemon{c}, nil
}

// offers reports whether the controller has a flag.
func offers(ctx context.Context, program, name string) bool {
	// Help ends with any status.
	help, _ := exec.CommandContext(ctx, program, "controller", "-h").CombinedOutput()
	return strings.Contains(string(help), "-"+name)
}

// stop ends the controller.
func (d *daemon) stop() error { return d.Stop(stopGrace) }

// rests waits until the controller has had nothing to do for a while: it hardly computes, and asks for nothing, as it
// does for events whose turn is late.
func (d *daemon) rests(ctx context.Context) error {
	const look, enough, little = 500 * time.Millisecond, 4, 2 * clockTick
	last, quiet, asked := time.Duration(-1), 0, -1.
	return wait.PollUntilContextCancel(ctx, look, true, func(ctx context.Context) (bool, error) {
		now, err := busy(d.Pid())
		if err != nil {
			return false, err
		}
		if last >= 0 && now-last <= little {
			quiet++
		} else {
			quiet = 0
		}
		last = now
		if quiet < enough {
			return false, nil
		}
		quiet = 0
		before := asked
		asked, err = d.metric(ctx, "rest_client_requests_total")
		return asked == before, err
	})
}

// heap is how much of the heap is in use after a collection, in KiB.
func (d *daemon) heap(ctx context.Context) (float64, error) {
	if err := d.collect(ctx); err != nil {
		return 0, fmt.Errorf("collect garbage: %w", err)
	}
	live, err := d.metric(ctx, "go_gc_heap_live_bytes")
	return live / 1024, err
}

// collect lets the controller collect its garbage, or waits until it does by itself, every two minutes.
func (d *daemon) collect(ctx context.Context) error {
	if d.Profiles() {
		_, err := d.Profile(ctx, "heap?gc=1")
		return err
	}
	const cycles = "go_gc_cycles_total_gc_cycles_total"
	before, err := d.metric(ctx, cycles)
	if err != nil {
		return err
	}
	return wait.PollUntilContextCancel(ctx, time.Second, false, func(ctx context.Context) (bool, error) {
		now, err := d.metric(ctx, cycles)
		return now > before, err
	})
}

func (d *daemon) metric(ctx context.Context, name string) (float64, error) {
	all, err := d.Metrics(ctx)
	if err != nil {
		return 0, err
	}
	value, found := all[name]
	if !found {
		return 0, fmt.Errorf("the controller has no metric %s", name)
	}
	return value, nil
}

// profile takes CPU profiles until the returned function is called, which also takes one of the heap
// and returns all files.
func (d *daemon) profile(ctx context.Context, folder, phase string) (stop func() []string) {
	if !d.Profiles() {
		return func() []string { return nil }
	}
	ctx, cancel := context.WithCancel(ctx)
	files := make(chan []string)
	go func() {
		var out []string
		for ctx.Err() == nil {
			file := filepath.Join(folder, fmt.Sprintf("%s-cpu-%d.pprof", phase, len(out)))
			if d.fetch(context.WithoutCancel(ctx), "profile?seconds="+strconv.Itoa(int(profileSpan.Seconds())), file) != nil {
				break
			}
			out = append(out, file)
		}
		heap := filepath.Join(folder, phase+"-heap.pprof")
		if d.fetch(context.WithoutCancel(ctx), "heap?gc=1", heap) == nil {
			out = append(out, heap)
		}
		files <- out
	}()
	return func() []string {
		cancel()
		return <-files
	}
}

// fetch writes one profile to a file.
func (d *daemon) fetch(ctx context.Context, what, file string) error {
	text, err := d.Profile(ctx, what)
	if err != nil {
		return err
	}
	return os.WriteFile(file, text, 0o600)
}
