// SPDX-License-Identifier: Apache-2.0

package vmictrl

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/virtloom/virtloom/handoff"
)

// OutOfService is a handoff.Fencer that believes an operator: the taint node.kubernetes.io/out-of-service on a Node says
// that the machine is off, as Kubernetes documents it, which detaches its volumes then. It counts only while the node's
// kubelet does not report: a taint that was forgotten on a machine that runs again is no confirmation.
type OutOfService struct {
	// Reader reads from the API server, not from a cache.
	Reader client.Reader
}

// Fence returns the operator's word about the node, nil if there is none.
func (f OutOfService) Fence(ctx context.Context, _ handoff.Guest, node string) (*handoff.Evidence, error) {
	live := &corev1.Node{}
	switch err := f.Reader.Get(ctx, types.NamespacedName{Name: node}, live); {
	case apierrors.IsNotFound(err):
		return nil, nil //nolint:nilnil // that it does not exist is evidence of its own
	case err != nil:
		return nil, fmt.Errorf("vmictrl: read Node %s at the API server: %w", node, err)
	}
	tainted := slices.ContainsFunc(live.Spec.Taints, func(t corev1.Taint) bool { return t.Key == corev1.TaintNodeOutOfService })
	ready := slices.ContainsFunc(live.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
	if !tainted || ready {
		return nil, nil //nolint:nilnil // none is an answer
	}
	return &handoff.Evidence{Kind: handoff.FenceConfirmed, Detail: "an operator has tainted it " + corev1.TaintNodeOutOfService}, nil
}

var _ handoff.Fencer = OutOfService{}
