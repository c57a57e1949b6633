// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/virtloom/virtloom/internal/rig"
)

const (
	// readyWithin bounds the start of a controller, stopGrace its end.
	readyWithin = 5 * time.Minute
	stopGrace   = 20 * time.Second
	// inbound is how many migrations may enter a node at a time: as many as may leave one, as stock
	// KubeVirt has no such limit.
	inbound = 50
	// profileSpan is how long one CPU profile lasts; a phase has several, which "go tool pprof" adds up.
	profileSpan = 5 * time.Second
)

// daemon is a "refdaemon controller" in a process of its own.
type daemon struct {
	program *rig.Program
	health  string
	metrics string
	// profiling is the address of its profiles, empty if it offers none.
	profiling string
	// startedIn is how long it took to be ready, with all caches filled.
	startedIn time.Duration
}

// startDaemon starts a controller and waits until it is ready.
func (b *bench) startDaemon(ctx context.Context) (*daemon, error) {
	addresses, err := freeAddresses(3)
	if err != nil {
		return nil, err
	}
	d := &daemon{health: addresses[0], metrics: addresses[1]}
	args := []string{
		"controller", "--kubeconfig", b.rig.Kubeconfig(rig.UserController), "--leader-elect=false", "--launcher-image", launcherImage,
		"--migrations-inbound-per-node", strconv.Itoa(inbound), "--health-address", d.health, "--metrics-address", d.metrics,
	}
	if b.options.profiles != "" {
		if !offers(ctx, b.options.daemon, "profiling-address") {
			b.logf("no profiles: %s has no --profiling-address", b.options.daemon)
		} else {
			d.profiling = addresses[2]
			args = append(args, "--profiling-address", d.profiling)
		}
	}
	begun := time.Now()
	d.program, err = b.rig.Run("refdaemon-controller", exec.Command(b.options.daemon, append(args, b.options.daemonArgs...)...))
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, readyWithin, fmt.Errorf("not ready after %s", readyWithin))
	defer cancel()
	err = wait.PollUntilContextCancel(ctx, 10*time.Millisecond, true, func(ctx context.Context) (bool, error) {
		select {
		case <-d.program.Done():
			return false, d.program.Ended()
		default:
		}
		_, err := get(ctx, "http://"+d.health+"/readyz")
		return err == nil, nil
	})
	if err != nil {
		return nil, fmt.Errorf("start the controller: %w (log %s)", err, d.program.Log())
	}
	d.startedIn = time.Since(begun)
	return d, nil
}

// offers reports whether the controller has a flag.
func offers(ctx context.Context, program, name string) bool {
	// Help ends with any status.
	help, _ := exec.CommandContext(ctx, program, "controller", "-h").CombinedOutput()
	return strings.Contains(string(help), "-"+name)
}

// freeAddresses are addresses of loopback that nobody listens at now.
func freeAddresses(n int) ([]string, error) {
	out := make([]string, n)
	for i := range out {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, fmt.Errorf("find a free port: %w", err)
		}
		defer l.Close()
		out[i] = l.Addr().String()
	}
	return out, nil
}

// get asks for url and expects 200.
func get(ctx context.Context, url string) ([]byte, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return nil, err
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err == nil && answer.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", url, answer.Status)
	}
	return body, err
}

// stop ends the controller.
func (d *daemon) stop() error { return d.program.Stop(stopGrace) }

// rests waits until the controller has had nothing to do for a while: it hardly computes, and asks for nothing, as it
// does for events whose turn is late.
func (d *daemon) rests(ctx context.Context) error {
	const look, enough, little = 500 * time.Millisecond, 4, 2 * clockTick
	last, quiet, asked := time.Duration(-1), 0, -1.
	return wait.PollUntilContextCancel(ctx, look, true, func(ctx context.Context) (bool, error) {
		now, err := busy(d.program.Pid())
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
	if d.profiling != "" {
		_, err := get(ctx, "http://"+d.profiling+"/debug/pprof/heap?gc=1")
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
	text, err := get(ctx, "http://"+d.metrics+"/metrics")
	if err != nil {
		return 0, fmt.Errorf("metrics of the controller: %w", err)
	}
	return metric(string(text), name)
}

// metric is the sum of a metric over its labels.
func metric(text, name string) (sum float64, err error) {
	found := false
	lines := bufio.NewScanner(strings.NewReader(text))
	for lines.Scan() {
		rest, is := strings.CutPrefix(lines.Text(), name)
		if !is || !strings.HasPrefix(rest, " ") && !strings.HasPrefix(rest, "{") {
			continue
		}
		one, err := strconv.ParseFloat(rest[strings.LastIndexByte(rest, ' ')+1:], 64)
		if err != nil {
			return 0, fmt.Errorf("read the metric %s of the controller: %w", name, err)
		}
		sum, found = sum+one, true
	}
	if !found {
		return 0, fmt.Errorf("the controller has no metric %s", name)
	}
	return sum, nil
}

// profile takes CPU profiles until the returned function is called, which also takes one of the heap
// and returns all files.
func (d *daemon) profile(ctx context.Context, folder, phase string) (stop func() []string) {
	if d.profiling == "" {
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
	text, err := get(ctx, "http://"+d.profiling+"/debug/pprof/"+what)
	if err != nil {
		return err
	}
	return os.WriteFile(file, text, 0o600)
}
