// SPDX-License-Identifier: Apache-2.0

package nodectrl_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	v1 "kubevirt.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/virtloom/virtloom/domain/memory"
	"github.com/virtloom/virtloom/domain/nodectrl"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// devices are device plugins.
type devices struct{ ready atomic.Bool }

func (d *devices) Ready() bool { return d.ready.Load() }

// report is a report of a heartbeat, and its time since the start.
type report struct {
	At          time.Duration
	Schedulable string
}

// heartbeats runs a heartbeat of node-a in a bubble and records its reports.
type heartbeats struct {
	*nodectrl.Heartbeat
	t       *testing.T
	hv      *memory.Hypervisor
	c       client.Client
	begun   time.Time
	stop    func() error
	mu      sync.Mutex
	reports []report // guarded by mu
}

func start(t *testing.T, edit func(*nodectrl.Heartbeat)) *heartbeats {
	t.Helper()
	h := &heartbeats{t: t, hv: memory.New("node-a"), begun: time.Now()}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-a", Labels: map[string]string{"kept": "yes"}, Annotations: map[string]string{"kept": "yes"}}}
	h.c = fake.NewClientBuilder().WithObjects(node).WithInterceptorFuncs(interceptor.Funcs{
		Patch: func(ctx context.Context, c client.WithWatch, o client.Object, p client.Patch, opts ...client.PatchOption) error {
			err := c.Patch(ctx, o, p, opts...)
			h.mu.Lock()
			defer h.mu.Unlock()
			h.reports = append(h.reports, report{time.Since(h.begun), o.GetLabels()[v1.NodeSchedulable]})
			return err
		},
	}).Build()
	h.Heartbeat = &nodectrl.Heartbeat{
		NodeName: "node-a", Client: h.c, Hypervisor: h.hv, CPUManagerState: filepath.Join(t.TempDir(), "none"), Random: func() float64 { return 0 },
	}
	if edit != nil {
		edit(h.Heartbeat)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- h.Start(ctx) }()
	h.stop = func() error {
		cancel()
		return <-ended
	}
	synctest.Wait()
	return h
}

// pass lets time pass.
func (h *heartbeats) pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func (h *heartbeats) want(reports ...report) {
	h.t.Helper()
	h.mu.Lock()
	defer h.mu.Unlock()
	if diff := cmp.Diff(reports, h.reports); diff != "" {
		h.t.Errorf("reports (-want +got):\n%s", diff)
	}
}

func (h *heartbeats) node() *corev1.Node {
	h.t.Helper()
	n := &corev1.Node{}
	must(h.t, h.c.Get(h.t.Context(), client.ObjectKey{Name: "node-a"}, n))
	return n
}

func TestHeartbeat_ReportsHypervisor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := start(t, nil)
		h.want(report{0, "true"})
		h.pass(time.Minute)
		h.pass(time.Second)
		must(t, h.stop())
		h.want(report{0, "true"}, report{time.Minute, "true"}, report{time.Minute + time.Second, "false"})
		n := h.node()
		if n.Labels["kept"] != "yes" || n.Annotations["kept"] != "yes" {
			t.Errorf("the node has %v, %v", n.Labels, n.Annotations)
		}
		if want := time.Now().UTC().Format(time.RFC3339); n.Annotations[v1.VirtHandlerHeartbeat] != want {
			t.Errorf("heartbeat %s, want %s", n.Annotations[v1.VirtHandlerHeartbeat], want)
		}
	})
}

// TestHeartbeat_HypervisorRecovers stops a daemon for a while, from just before a report on.
func TestHeartbeat_HypervisorRecovers(t *testing.T) {
	const down = time.Minute - time.Millisecond
	for name, tt := range map[string]struct {
		outage time.Duration
		ready  bool // the devices
		want   []report
	}{
		"for less than a second": {100 * time.Millisecond, true, []report{{0, "true"}, {60 * time.Second, "false"}, {61 * time.Second, "true"}, {121 * time.Second, "true"}}},
		"for some seconds":       {3 * time.Second, true, []report{{0, "true"}, {60 * time.Second, "false"}, {63 * time.Second, "true"}, {123 * time.Second, "true"}}},
		"for more than a minute": {70 * time.Second, true, []report{{0, "true"}, {60 * time.Second, "false"}, {120 * time.Second, "false"}, {130 * time.Second, "true"}}},
		"without devices":        {3 * time.Second, false, []report{{0, "false"}, {60 * time.Second, "false"}, {63 * time.Second, "false"}, {123 * time.Second, "false"}}},
		"between two reports":    {0, true, []report{{0, "true"}, {60 * time.Second, "true"}, {120 * time.Second, "true"}}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := &devices{}
				d.ready.Store(tt.ready)
				h := start(t, func(h *nodectrl.Heartbeat) { h.Devices = d })
				h.pass(down)
				h.hv.Disconnect()
				h.pass(tt.outage)
				h.hv.Reconnect()
				h.pass(135*time.Second - down - tt.outage)
				h.want(tt.want...)
				must(t, h.stop())
			})
		})
	}
}

// TestHeartbeat_DrainingAgent ends an agent that continues migrations for a while.
func TestHeartbeat_DrainingAgent(t *testing.T) {
	for name, tt := range map[string]struct {
		drains time.Duration
		gone   bool // the node
		want   []report
	}{
		"with nothing to do":      {0, false, []report{{0, "true"}, {time.Second, "false"}}},
		"for less than a minute":  {30 * time.Second, false, []report{{0, "true"}, {time.Second, "false"}}},
		"for more than a minute":  {150 * time.Second, false, []report{{0, "true"}, {time.Second, "false"}, {61 * time.Second, "false"}, {121 * time.Second, "false"}}},
		"while nothing is stored": {70 * time.Second, true, []report{{0, "true"}, {time.Second, ""}, {61 * time.Second, ""}}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				drained := make(chan struct{})
				h := start(t, func(h *nodectrl.Heartbeat) { h.Drained = drained })
				h.pass(time.Second)
				if tt.gone {
					must(t, h.c.Delete(t.Context(), h.node()))
				}
				timer := time.AfterFunc(tt.drains, func() { close(drained) })
				defer timer.Stop()
				err := h.stop()
				if (err != nil) != tt.gone {
					t.Errorf("it ended with %v", err)
				}
				if took := time.Since(h.begun); took != time.Second+tt.drains {
					t.Errorf("it ended after %s", took)
				}
				h.want(tt.want...)
			})
		})
	}
}

func TestHeartbeat_WaitsForDevices(t *testing.T) {
	for name, tt := range map[string]struct {
		ready []time.Duration // when the answer changes
		want  []report
	}{
		"ready at once":           {[]time.Duration{0}, []report{{0, "true"}, {time.Minute, "true"}}},
		"ready after 2.5 seconds": {[]time.Duration{2500 * time.Millisecond}, []report{{0, "false"}, {3 * time.Second, "true"}, {63 * time.Second, "true"}}},
		"ready after 30 seconds":  {[]time.Duration{30 * time.Second}, []report{{0, "false"}, {time.Minute, "true"}}},
		"never ready":             {nil, []report{{0, "false"}, {time.Minute, "false"}}},
		"not ready any more":      {[]time.Duration{0, 30 * time.Second}, []report{{0, "true"}, {time.Minute, "false"}}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := &devices{}
				for _, at := range tt.ready {
					if at == 0 {
						d.ready.Store(true)
						continue
					}
					timer := time.AfterFunc(at, func() { d.ready.Store(!d.ready.Load()) })
					defer timer.Stop()
				}
				h := start(t, func(h *nodectrl.Heartbeat) { h.Devices = d })
				h.pass(64 * time.Second)
				h.want(tt.want...)
				must(t, h.stop())
			})
		})
	}
}

func TestHeartbeat_Jitter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		draws := []float64{0, 0.5, 1}
		h := start(t, func(h *nodectrl.Heartbeat) {
			h.Every, h.Random = 10*time.Second, func() float64 {
				draw := draws[0]
				draws = append(draws[1:], 0)
				return draw
			}
		})
		h.pass(49 * time.Second)
		h.want(report{0, "true"}, report{10 * time.Second, "true"}, report{26 * time.Second, "true"}, report{48 * time.Second, "true"})
		must(t, h.stop())
	})
}

func TestHeartbeat_RetriesFailedWrite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := start(t, nil)
		must(t, h.c.Delete(t.Context(), h.node()))
		h.pass(time.Minute)
		must(t, h.c.Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-a"}}))
		h.pass(time.Minute)
		if got := h.node().Labels[v1.NodeSchedulable]; got != "true" {
			t.Errorf("schedulable %q", got)
		}
		must(t, h.stop())
	})
}

// TestHeartbeat_ServerReachableAgain: until then the node's VMIs would count as lost, though it
// runs them.
func TestHeartbeat_ServerReachableAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var cut atomic.Bool
		h := start(t, func(h *nodectrl.Heartbeat) {
			h.Client = interceptor.NewClient(h.Client.(client.WithWatch), interceptor.Funcs{
				Patch: func(ctx context.Context, c client.WithWatch, o client.Object, p client.Patch, opts ...client.PatchOption) error {
					if cut.Load() {
						return errors.New("no route to host")
					}
					return c.Patch(ctx, o, p, opts...)
				},
			})
		})
		cut.Store(true)
		h.pass(5*time.Minute + 500*time.Millisecond)
		cut.Store(false)
		h.pass(90 * time.Second)
		h.want(report{0, "true"}, report{5*time.Minute + time.Second, "true"}, report{6*time.Minute + time.Second, "true"})
		must(t, h.stop())
	})
}

func TestHeartbeat_CPUManagerPolicy(t *testing.T) {
	for name, tt := range map[string]struct{ state, want string }{
		"static":       {`{"policyName":"static","defaultCpuSet":"0-3","checksum":1}`, "true"},
		"none":         {`{"policyName":"none","defaultCpuSet":"","checksum":1}`, "false"},
		"unreadable":   {`{"policyName":"static"`, "false"},
		"no such file": {"", "false"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := start(t, func(h *nodectrl.Heartbeat) {
					if tt.state != "" {
						must(t, os.WriteFile(h.CPUManagerState, []byte(tt.state), 0o600))
					}
				})
				for _, label := range []string{v1.CPUManager, v1.DeprecatedCPUManager} {
					if got := h.node().Labels[label]; got != tt.want {
						t.Errorf("%s is %q, want %q", label, got, tt.want)
					}
				}
				must(t, h.stop())
			})
		})
	}
}

func TestHeartbeat_RequiredFields(t *testing.T) {
	err := (&nodectrl.Heartbeat{}).Start(t.Context())
	if err == nil {
		t.Fatal("it started")
	}
	for _, field := range []string{"NodeName", "Client", "Hypervisor"} {
		if !strings.Contains(err.Error(), field) {
			t.Errorf("%v does not name %s", err, field)
		}
	}
}
