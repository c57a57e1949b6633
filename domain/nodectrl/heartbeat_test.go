// SPDX-License-Identifier: Apache-2.0

package nodectrl_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
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

	"github.com/virtloom/virtloom/domain/domaintest"
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

// report is what a heartbeat has said, and when, since the start.
type report struct {
	At          time.Duration
	Schedulable string
}

// heartbeats runs a heartbeat of node-a in a bubble and keeps what it says.
type heartbeats struct {
	*nodectrl.Heartbeat
	t       *testing.T
	hv      *domaintest.Hypervisor
	c       client.Client
	begun   time.Time
	reports []report
	stop    func() error
}

func start(t *testing.T, edit func(*nodectrl.Heartbeat)) *heartbeats {
	t.Helper()
	h := &heartbeats{t: t, hv: domaintest.New("node-a"), begun: time.Now()}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-a", Labels: map[string]string{"kept": "yes"}, Annotations: map[string]string{"kept": "yes"}}}
	h.c = fake.NewClientBuilder().WithObjects(node).WithInterceptorFuncs(interceptor.Funcs{
		Patch: func(ctx context.Context, c client.WithWatch, o client.Object, p client.Patch, opts ...client.PatchOption) error {
			err := c.Patch(ctx, o, p, opts...)
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

func TestAHeartbeatSaysWhetherTheHypervisorAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := start(t, nil)
		h.want(report{0, "true"})
		h.hv.Disconnect()
		h.pass(time.Minute)
		h.hv.Reconnect()
		h.pass(time.Minute)
		h.pass(time.Second)
		must(t, h.stop())
		h.want(report{0, "true"}, report{time.Minute, "false"}, report{2 * time.Minute, "true"}, report{2*time.Minute + time.Second, "false"})
		n := h.node()
		if n.Labels["kept"] != "yes" || n.Annotations["kept"] != "yes" {
			t.Errorf("the node has %v, %v", n.Labels, n.Annotations)
		}
		if want := time.Now().UTC().Format(time.RFC3339); n.Annotations[v1.VirtHandlerHeartbeat] != want {
			t.Errorf("heartbeat %s, want %s", n.Annotations[v1.VirtHandlerHeartbeat], want)
		}
	})
}

func TestAHeartbeatWaitsForDevices(t *testing.T) {
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

func TestHeartbeatsOfManyNodesDoNotCoincide(t *testing.T) {
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

func TestAHeartbeatThatCannotBeWrittenIsRepeated(t *testing.T) {
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

func TestAHeartbeatTellsWhetherContainersHaveCPUsOfTheirOwn(t *testing.T) {
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

func TestAHeartbeatNeedsItsFields(t *testing.T) {
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
