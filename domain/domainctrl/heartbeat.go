// SPDX-License-Identifier: Apache-2.0

package domainctrl

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	v1 "kubevirt.io/api/core/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/virtloom/virtloom/domain"
)

// DefaultHeartbeat is how often a node reports, as KubeVirt's node agent does.
const DefaultHeartbeat = time.Minute

// Heartbeat keeps the label kubevirt.io/schedulable and the annotation
// kubevirt.io/heartbeat of the node current, for as long as its hypervisor
// answers. Add it to a manager. When it ends the node is marked unschedulable.
type Heartbeat struct {
	// NodeName is the node's name.
	NodeName string
	// Client writes the node.
	Client client.Client
	// Hypervisor is asked before every report.
	Hypervisor domain.Hypervisor
	// Every defaults to DefaultHeartbeat, Clock to the real clock.
	Every time.Duration
	Clock clock.Clock
}

// Start reports until ctx ends.
func (h *Heartbeat) Start(ctx context.Context) error {
	if h.NodeName == "" || h.Client == nil || h.Hypervisor == nil {
		return errors.New("domainctrl: Heartbeat needs NodeName, Client and Hypervisor")
	}
	if h.Every == 0 {
		h.Every = DefaultHeartbeat
	}
	if h.Clock == nil {
		h.Clock = clock.RealClock{}
	}
	log := ctrl.LoggerFrom(ctx).WithName("heartbeat")
	for {
		if err := h.beat(ctx); err != nil && ctx.Err() == nil {
			log.Error(err, "Could not report the node")
		}
		select {
		case <-ctx.Done():
			return h.leave(context.WithoutCancel(ctx))
		case <-h.Clock.After(h.Every):
		}
	}
}

// NeedLeaderElection is false: every node agent reports for its node.
func (h *Heartbeat) NeedLeaderElection() bool { return false }

func (h *Heartbeat) beat(ctx context.Context) error {
	ask, cancel := context.WithTimeout(ctx, DefaultCallTimeout)
	defer cancel()
	// What Host knows may be remembered; List asks.
	_, err := h.Hypervisor.List(ask)
	return errors.Join(err, h.report(ctx, err == nil))
}

// leave says that nothing more shall be placed on the node.
func (h *Heartbeat) leave(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	return h.report(ctx, false)
}

func (h *Heartbeat) report(ctx context.Context, schedulable bool) error {
	stamp, err := json.Marshal(h.Clock.Now().UTC().Format(time.RFC3339))
	if err != nil {
		return fmt.Errorf("domainctrl: report node %s: %w", h.NodeName, err)
	}
	patch := fmt.Appendf(nil, `{"metadata":{"labels":{%q:"%t"},"annotations":{%q:%s}}}`,
		v1.NodeSchedulable, schedulable, v1.VirtHandlerHeartbeat, stamp)
	node := &corev1.Node{}
	node.Name = h.NodeName
	if err := h.Client.Patch(ctx, node, client.RawPatch(types.MergePatchType, patch)); err != nil {
		return fmt.Errorf("domainctrl: report node %s: %w", h.NodeName, err)
	}
	return nil
}
