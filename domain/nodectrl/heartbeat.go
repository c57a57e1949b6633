// SPDX-License-Identifier: Apache-2.0

package nodectrl

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	v1 "kubevirt.io/api/core/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/handoff"
)

const (
	// DefaultHeartbeat is the shortest time between two reports of a node, as in KubeVirt.
	DefaultHeartbeat = time.Minute
	// DefaultCPUManagerState is where a kubelet keeps the policy of its CPU manager.
	DefaultCPUManagerState = "/var/lib/kubelet/cpu_manager_state"

	// jitter is by how much of it a period is prolonged at most, so that the nodes of a cluster do
	// not all write at once; KubeVirt's.
	jitter = 1.2
	// devicesWithin bounds how long the first reports wait for device plugins, looking every
	// devicesEvery; KubeVirt's.
	devicesWithin = 10 * time.Second
	devicesEvery  = time.Second
	// askWithin bounds a question to the hypervisor, leaveWithin the last report. One that did not
	// answer is asked again after askAgain, so that a short outage does not last until the next
	// report.
	askWithin   = 30 * time.Second
	askAgain    = time.Second
	leaveWithin = 5 * time.Second
)

// Readiness is what a node needs besides its hypervisor, such as its device plugins.
type Readiness interface {
	// Ready tells whether everything is there that guests need.
	Ready() bool
}

// Heartbeat keeps the node's labels kubevirt.io/schedulable and kubevirt.io/cpumanager (and
// cpumanager) and its annotation kubevirt.io/heartbeat current, and beside that handoff.HeartbeatAnnotation. The node is schedulable while its
// hypervisor answers and its devices are ready. Add it to a manager. When that ends the node is marked
// unschedulable.
type Heartbeat struct {
	// NodeName is the node's name.
	NodeName string
	// Client writes the node.
	Client client.Client
	// Hypervisor is asked before every report.
	Hypervisor domain.Hypervisor
	// Devices are what guests need; defaults to nothing. At the start they are waited for, for 10
	// seconds: until then the node is reported as not schedulable.
	Devices Readiness
	// Drained is closed when the agent has done what it goes on with after the manager's end, such as
	// migrations: until then the node is alive, takes no guests, and reports that. Defaults to nothing.
	Drained <-chan struct{}
	// CPUManagerState is the file in which the kubelet says whether it gives containers CPUs of
	// their own (policy "static"); one that cannot be read says that it does not. Defaults to
	// DefaultCPUManagerState.
	CPUManagerState string
	// Every is the shortest time between two reports, the longest is 2.2 times that. Defaults to
	// DefaultHeartbeat.
	Every time.Duration
	// Clock defaults to the real clock, Random, which returns numbers from zero up to one, to those
	// of math/rand.
	Clock  clock.Clock
	Random func() float64
}

// Start reports until ctx ends, and then until Drained is closed.
func (h *Heartbeat) Start(ctx context.Context) error {
	if err := h.complete(); err != nil {
		return err
	}
	begun := h.Clock.Now()
	for {
		ready, silent := h.ready(), h.ask(ctx)
		told := h.report(ctx, silent == nil && ready)
		if err := errors.Join(silent, told); err != nil && ctx.Err() == nil {
			complain(ctx, err)
		}
		next := h.Clock.Now().Add(h.pause(told))
		if silent != nil && h.awaitHypervisor(ctx, next) || !ready && h.awaitDevices(ctx, begun.Add(devicesWithin)) {
			next = h.Clock.Now()
		}
		select {
		case <-ctx.Done():
			return h.leave(ctx)
		case <-h.Clock.After(next.Sub(h.Clock.Now())):
		}
	}
}

// pause is the time until the next report. One that was not answered is soon repeated: the agent may reach the API
// server again before the next one is due, and would take back the guests of a node that counts as silent still, one
// write of either side after the other.
func (h *Heartbeat) pause(told error) time.Duration {
	if told == nil || apierrors.IsNotFound(told) || apierrors.IsForbidden(told) {
		return jittered(h.Every, h.Random)
	}
	return askAgain
}

func complain(ctx context.Context, err error) {
	ctrl.LoggerFrom(ctx).WithName("heartbeat").Error(err, "Could not report the node")
}

// NeedLeaderElection is false: every node agent reports for its node.
func (h *Heartbeat) NeedLeaderElection() bool { return false }

// complete checks what is required and fills in defaults.
func (h *Heartbeat) complete() error {
	if h.NodeName == "" || h.Client == nil || h.Hypervisor == nil {
		return errors.New("nodectrl: Heartbeat needs NodeName, Client and Hypervisor")
	}
	if h.Every == 0 {
		h.Every = DefaultHeartbeat
	}
	if h.CPUManagerState == "" {
		h.CPUManagerState = DefaultCPUManagerState
	}
	if h.Clock == nil {
		h.Clock = clock.RealClock{}
	}
	if h.Random == nil {
		h.Random = rand.Float64
	}
	return nil
}

func (h *Heartbeat) ready() bool { return h.Devices == nil || h.Devices.Ready() }

// awaitDevices returns when the devices are ready, or that time has come, and tells which.
func (h *Heartbeat) awaitDevices(ctx context.Context, until time.Time) bool {
	for !h.ready() && h.Clock.Now().Before(until) {
		select {
		case <-ctx.Done():
			return false
		case <-h.Clock.After(devicesEvery):
		}
	}
	return h.ready()
}

// awaitHypervisor returns when the hypervisor answers again, or that time has come, and tells which.
func (h *Heartbeat) awaitHypervisor(ctx context.Context, until time.Time) bool {
	for h.Clock.Now().Add(askAgain).Before(until) {
		select {
		case <-ctx.Done():
			return false
		case <-h.Clock.After(askAgain):
		}
		if h.ask(ctx) == nil {
			return true
		}
	}
	return false
}

// ask asks the hypervisor. What Host knows may be remembered; List asks.
func (h *Heartbeat) ask(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, askWithin)
	defer cancel()
	_, err := h.Hypervisor.List(ctx)
	return err
}

// leave says that nothing more shall be placed on the node, as often as that it is alive until the
// agent has nothing more to do.
func (h *Heartbeat) leave(ctx context.Context) error {
	ctx = context.WithoutCancel(ctx)
	for {
		err := h.lastReport(ctx)
		if h.Drained == nil {
			return err
		}
		select {
		case <-h.Drained:
			return err
		case <-h.Clock.After(jittered(h.Every, h.Random)):
		}
		if err != nil {
			complain(ctx, err)
		}
	}
}

func (h *Heartbeat) lastReport(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, leaveWithin)
	defer cancel()
	return h.report(ctx, false)
}

func (h *Heartbeat) report(ctx context.Context, schedulable bool) error {
	manager := strconv.FormatBool(staticPolicy(h.CPUManagerState))
	now := h.Clock.Now().UTC().Format(time.RFC3339)
	return patchNode(ctx, h.Client, h.NodeName, metadata{
		Labels: map[string]*string{
			v1.NodeSchedulable: new(strconv.FormatBool(schedulable)), v1.CPUManager: &manager, v1.DeprecatedCPUManager: &manager,
		},
		Annotations: map[string]*string{v1.VirtHandlerHeartbeat: &now, handoff.HeartbeatAnnotation: &now},
	})
}

// staticPolicy tells whether the kubelet that keeps this file gives CPUs to single containers.
func staticPolicy(path string) bool {
	text, err := os.ReadFile(path)
	if err != nil {
		return false
	}
	var state struct {
		PolicyName string `json:"policyName"`
	}
	return json.Unmarshal(text, &state) == nil && state.PolicyName == "static"
}

// jittered is a time between period and 2.2 times period.
func jittered(period time.Duration, random func() float64) time.Duration {
	return period + time.Duration(random()*jitter*float64(period))
}

// metadata are the changes of a Node; a key without a value is removed.
type metadata struct {
	Labels      map[string]*string `json:"labels,omitempty"`
	Annotations map[string]*string `json:"annotations,omitempty"`
}

// +kubebuilder:rbac:groups="",resources=nodes,verbs=patch

// patchNode changes those keys and nothing else.
func patchNode(ctx context.Context, c client.Client, name string, m metadata) error {
	patch, err := json.Marshal(map[string]metadata{"metadata": m})
	if err != nil {
		return fmt.Errorf("nodectrl: report node %s: %w", name, err)
	}
	node := &corev1.Node{}
	node.Name = name
	if err := c.Patch(ctx, node, client.RawPatch(types.MergePatchType, patch)); err != nil {
		return fmt.Errorf("nodectrl: report node %s: %w", name, err)
	}
	return nil
}
