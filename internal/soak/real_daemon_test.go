// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"syscall"
	"time"

	"github.com/virtloom/virtloom/internal/refcluster"
)

// daemon is a "refdaemon controller" in a process of its own.
type daemon struct{ *refcluster.Controller }

// startDaemon starts a controller and waits until it is ready.
func (r *Real) startDaemon(ctx context.Context) error {
	r.lives++
	c, err := refcluster.RunController(ctx, r.rig, refcluster.ControllerOptions{
		Name: fmt.Sprintf("refdaemon-controller-%d", r.lives), Program: r.o.Daemon, Profiles: true,
		Args: []string{"--launcher-image", image, "--node-silent-after", realSilent.String()},
	})
	if err != nil {
		return err
	}
	r.daemon = &daemon{c}
	return nil
}

func (d *daemon) signal(s syscall.Signal) error { return syscall.Kill(d.Pid(), s) }

// wake lets a controller go on that was stopped; one that has ended meanwhile does not.
func (d *daemon) wake() error {
	if err := d.signal(syscall.SIGCONT); !errors.Is(err, syscall.ESRCH) {
		return err
	}
	return nil
}

// Values of the real soak besides those of the simulated one.
const (
	valueLife  = "controller"
	valueLive  = "live heap KiB"
	valueFiles = "open files"
)

// steady is how long unused goroutines and connections may take to go.
const steady = 3 * time.Second

// sample measures the controller, with nothing left but what was there at first. What it has the least of in a few
// looks is what it needs: a look in itself costs a connection.
func (r *Real) sample(ctx context.Context) (Sample, error) {
	time.Sleep(steady)
	s := Sample{At: time.Since(r.begun), Operations: r.ops, Values: map[string]float64{valueLife: float64(r.lives)}}
	for look := range 3 {
		if _, err := r.daemon.Profile(ctx, "heap?gc=1"); err != nil {
			return s, fmt.Errorf("collect garbage: %w", err)
		}
		g, err := r.daemon.Metrics(ctx)
		if err != nil {
			return s, err
		}
		for to, from := range map[string]string{valueGoroutines: "go_goroutines", valueLive: "go_gc_heap_live_bytes", valueFiles: "process_open_fds"} {
			v, known := g[from]
			if !known {
				return s, fmt.Errorf("the controller has no metric %s", from)
			}
			if to == valueLive {
				v /= 1024
			}
			if was, seen := s.Values[to]; look == 0 || !seen || v < was {
				s.Values[to] = v
			}
		}
		time.Sleep(time.Second)
	}
	return s, nil
}

// RealBounds are those of what a controller has that lives on.
var RealBounds = []Bound{
	{Name: valueGoroutines, Most: -1, Share: 0.03, Slack: 5},
	{Name: valueLive, Most: -1, Share: 0.1, Slack: 2048},
	{Name: valueFiles, Most: -1, Slack: 4},
}

// lastLife are the samples of the controller that lived last.
func lastLife(samples []Sample) []Sample {
	if len(samples) == 0 {
		return nil
	}
	last := samples[len(samples)-1].Values[valueLife]
	i := slices.IndexFunc(samples, func(s Sample) bool { return s.Values[valueLife] == last })
	return samples[i:]
}
