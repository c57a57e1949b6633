// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/virtloom/virtloom/internal/rig"
)

// readyWithin bounds the start of a controller.
const readyWithin = 3 * time.Minute

// daemon is a "refdaemon controller" in a process of its own.
type daemon struct {
	program                    *rig.Program
	health, metrics, profiling string
}

// startDaemon starts a controller and waits until it is ready.
func (r *Real) startDaemon(ctx context.Context) error {
	addresses, err := freeAddresses(3)
	if err != nil {
		return err
	}
	d := &daemon{health: addresses[0], metrics: addresses[1], profiling: addresses[2]}
	r.lives++
	d.program, err = r.rig.Run(fmt.Sprintf("refdaemon-controller-%d", r.lives), exec.Command(r.o.Daemon,
		"controller", "--kubeconfig", r.rig.Kubeconfig(rig.UserController), "--leader-elect=false", "--launcher-image", image,
		"--node-silent-after", realSilent.String(), "--health-address", d.health, "--metrics-address", d.metrics, "--profiling-address", d.profiling))
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, readyWithin, fmt.Errorf("not ready after %s", readyWithin))
	defer cancel()
	err = wait.PollUntilContextCancel(ctx, 50*time.Millisecond, true, func(ctx context.Context) (bool, error) {
		select {
		case <-d.program.Done():
			return false, d.program.Ended()
		default:
		}
		_, err := get(ctx, "http://"+d.health+"/readyz")
		return err == nil, nil
	})
	if err != nil {
		return fmt.Errorf("start the controller: %w (log %s)", err, d.program.Log())
	}
	r.daemon = d
	return nil
}

func (d *daemon) signal(s syscall.Signal) error { return syscall.Kill(d.program.Pid(), s) }

// wake lets a controller go on that was stopped; one that has ended meanwhile does not.
func (d *daemon) wake() error {
	if err := d.signal(syscall.SIGCONT); !errors.Is(err, syscall.ESRCH) {
		return err
	}
	return nil
}

// freeAddresses are addresses of loopback that nobody listens at now.
func freeAddresses(n int) ([]string, error) {
	var out []string
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, fmt.Errorf("find a free port: %w", err)
		}
		defer func() { _ = l.Close() }()
		out = append(out, l.Addr().String())
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
	defer func() { _ = answer.Body.Close() }()
	body, err := io.ReadAll(answer.Body)
	if err == nil && answer.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", url, answer.Status)
	}
	return body, err
}

// gauges reads the controller's metrics.
func (d *daemon) gauges(ctx context.Context) (gauges, error) {
	text, err := get(ctx, "http://"+d.metrics+"/metrics")
	if err != nil {
		return nil, fmt.Errorf("metrics of the controller: %w", err)
	}
	return parseGauges(string(text))
}

// parseGauges sums what metrics say over their labels.
func parseGauges(text string) (gauges, error) {
	p := expfmt.NewTextParser(model.UTF8Validation)
	families, err := p.TextToMetricFamilies(strings.NewReader(text))
	if err != nil {
		return nil, fmt.Errorf("metrics of the controller: %w", err)
	}
	out := gauges{}
	for name, f := range families {
		for _, m := range f.GetMetric() {
			out[name] += valueOf(m)
		}
	}
	return out, nil
}

func valueOf(m *dto.Metric) float64 {
	switch {
	case m.Gauge != nil:
		return m.Gauge.GetValue()
	case m.Counter != nil:
		return m.Counter.GetValue()
	default:
		return m.Untyped.GetValue()
	}
}

// Values of the real soak besides those of the simulated one.
const (
	valueLife  = "controller"
	valueLive  = "live heap KiB"
	valueFiles = "open files"
)

// steady is how long goroutines and connections may take to go that nobody uses any more.
const steady = 3 * time.Second

// sample measures the controller, with nothing left but what was there at first. What it has the least of in a few
// looks is what it needs: a look in itself costs a connection.
func (r *Real) sample(ctx context.Context) (Sample, error) {
	time.Sleep(steady)
	s := Sample{At: time.Since(r.begun), Operations: r.ops, Values: map[string]float64{valueLife: float64(r.lives)}}
	for look := range 3 {
		if _, err := get(ctx, "http://"+r.daemon.profiling+"/debug/pprof/heap?gc=1"); err != nil {
			return s, fmt.Errorf("collect garbage: %w", err)
		}
		g, err := r.daemon.gauges(ctx)
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
