// SPDX-License-Identifier: Apache-2.0

package nodectrl

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
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
	// defaultCPUManagerState is the file in which a kubelet stores the policy of its CPU manager.
	defaultCPUManagerState = "/var/lib/kubelet/cpu_manager_state"

	// jitter is the maximal fraction by which a period is prolonged, so that the nodes of a cluster
	// do not all write at once; KubeVirt's.
	jitter = 1.2
	// devicesWithin bounds how long the first reports wait for device plugins, polled every
	// devicesEvery; KubeVirt's.
	devicesWithin = 10 * time.Second
	devicesEvery  = time.Second
	// askWithin bounds a call to the hypervisor, leaveWithin the last report. An unresponsive
	// hypervisor is called again after askAgain, so that a short outage does not last until the
	// next report.
	askWithin   = 30 * time.Second
	askAgain    = time.Second
	leaveWithin = 5 * time.Second
	// checkAgain is how often a node that lacks something is checked between two reports, checkFit how often one that lacks nothing.
	checkAgain = time.Second
	checkFit   = 10 * time.Second
)

// Readiness reports whether the node's dependencies besides its hypervisor are ready, such as its
// device plugins.
type Readiness interface {
	// Ready reports whether all devices are ready.
	Ready() bool
}

// Heartbeat keeps the node's labels kubevirt.io/schedulable and kubevirt.io/cpumanager (and
// cpumanager) and its annotation kubevirt.io/heartbeat current, and handoff.HeartbeatAnnotation as
// well. The node is schedulable while its hypervisor is responsive and its devices are ready. Add
// it to a manager. When that ends the node is marked unschedulable.
type Heartbeat struct {
	// NodeName is the node's name.
	NodeName string
	// Client writes the node.
	Client client.Client
	// Hypervisor is called before every report.
	Hypervisor domain.Hypervisor
	// Devices are the node's devices; defaults to none. At the start the heartbeat waits for them
	// for 10 seconds: until then the node is reported as not schedulable.
	Devices Readiness
	// Drained is closed when the agent has finished the work that outlives the manager, such as
	// migrations: until then the node is reported as alive and unschedulable. Defaults to nothing.
	Drained <-chan struct{}
	// CPUManagerState is the file in which the kubelet stores whether it gives containers dedicated
	// CPUs (policy "static"); a file that cannot be read means that it does not. Defaults to
	// /var/lib/kubelet/cpu_manager_state.
	CPUManagerState string
	// Check returns what the node lacks for VMIs; it is called before every report, and must return soon. While something is
	// missing, the node is unschedulable, ProblemsAnnotation says why, and Recorder emits an event when that changes. Both default
	// to none.
	Check    func(context.Context) []Problem
	Recorder events.EventRecorder
	// Every is the shortest time between two reports, the longest is 2.2 times that. Defaults to
	// DefaultHeartbeat.
	Every time.Duration
	// Clock defaults to the real clock, Random, which returns numbers from zero up to one, to those
	// of math/rand.
	Clock  clock.Clock
	Random func() float64

	problems []Problem // the last ones
}

// Start reports until ctx ends, and then until Drained is closed.
func (h *Heartbeat) Start(ctx context.Context) error {
	if err := h.complete(); err != nil {
		return err
	}
	begun := h.Clock.Now()
	for {
		ready, silent := h.ready(), h.ask(ctx)
		reported := h.report(ctx, silent == nil && ready)
		if err := errors.Join(silent, reported); err != nil && ctx.Err() == nil {
			complain(ctx, err)
		}
		next := h.Clock.Now().Add(h.pause(reported))
		if silent != nil && h.awaitHypervisor(ctx, next) || h.awaitNode(ctx, ready, begun.Add(devicesWithin), next) {
			next = h.Clock.Now()
		}
		select {
		case <-ctx.Done():
			return h.leave(ctx)
		case <-h.Clock.After(next.Sub(h.Clock.Now())):
		}
	}
}

// pause is the time until the next report. A failed report is soon repeated: the agent may reach
// the API server again before the next one is due, and would take VMIs back while the node still
// counts as unresponsive, each side reverting the other's write.
func (h *Heartbeat) pause(reported error) time.Duration {
	if reported == nil || apierrors.IsNotFound(reported) || apierrors.IsForbidden(reported) {
		return jittered(h.Every, h.Random)
	}
	return askAgain
}

func complain(ctx context.Context, err error) {
	ctrl.LoggerFrom(ctx).WithName("heartbeat").Error(err, "Reporting the node failed, retrying")
}

// NeedLeaderElection is false: every node agent reports its own node.
func (h *Heartbeat) NeedLeaderElection() bool { return false }

// complete checks required fields and fills in defaults.
func (h *Heartbeat) complete() error {
	if h.NodeName == "" || h.Client == nil || h.Hypervisor == nil {
		return errors.New("nodectrl: Heartbeat.NodeName, Client and Hypervisor are required")
	}
	if h.Every == 0 {
		h.Every = DefaultHeartbeat
	}
	if h.CPUManagerState == "" {
		h.CPUManagerState = defaultCPUManagerState
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

// awaitDevices returns when the devices are ready, or at until, and reports which.
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

// awaitHypervisor returns when the hypervisor is responsive again, or at until, and reports which.
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

// awaitNode returns when devices are ready that were not, which it waits for until devicesUntil, or when what the node lacks has
// changed, or at until, and reports whether there is something to report.
func (h *Heartbeat) awaitNode(ctx context.Context, ready bool, devicesUntil, until time.Time) bool {
	return !ready && h.awaitDevices(ctx, devicesUntil) || h.awaitFit(ctx, until)
}

// awaitFit returns when what the node lacks has changed, such as by a KubeVirt object that allows emulation, or does not any more, or at
// until, and reports which.
func (h *Heartbeat) awaitFit(ctx context.Context, until time.Time) bool {
	every := checkFit
	if len(h.problems) > 0 {
		every = checkAgain
	}
	for h.Check != nil && h.Clock.Now().Add(every).Before(until) {
		select {
		case <-ctx.Done():
			return false
		case <-h.Clock.After(every):
		}
		if !slices.Equal(h.Check(ctx), h.problems) {
			return true
		}
	}
	return false
}

// ask calls the hypervisor. Host may return a remembered answer; List may not.
func (h *Heartbeat) ask(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, askWithin)
	defer cancel()
	_, err := h.Hypervisor.List(ctx)
	return err
}

// leave reports the node as unschedulable, and as alive until the agent has drained.
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
	fit, annotations := h.look(ctx)
	now := h.Clock.Now().UTC().Format(time.RFC3339)
	own := map[string]*string{v1.VirtHandlerHeartbeat: &now, handoff.HeartbeatAnnotation: &now}
	maps.Copy(own, annotations)
	return patchNode(ctx, h.Client, h.NodeName, metadata{
		Labels: map[string]*string{
			v1.NodeSchedulable: new(strconv.FormatBool(schedulable && fit)), v1.CPUManager: &manager, v1.DeprecatedCPUManager: &manager,
		},
		Annotations: own,
	})
}

// staticPolicy reports whether the kubelet that writes this file dedicates CPUs to single
// containers.
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

// jittered returns a time between period and 2.2 times period.
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
