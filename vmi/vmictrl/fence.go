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

// OutOfService is a handoff.Fencer that trusts the operator's taint node.kubernetes.io/out-of-service on a Node, which
// confirms that the machine is off, as documented by Kubernetes; its volumes are then detached. It counts only while the
// node's kubelet is not Ready: a taint left on a machine that runs again is no confirmation.
type OutOfService struct {
	// Reader reads from the API server, not from a cache.
	Reader client.Reader
}

// Fence returns the taint of the node as evidence, nil if there is none.
func (f OutOfService) Fence(ctx context.Context, _ handoff.Guest, node string) (*handoff.Evidence, error) {
	live := &corev1.Node{}
	switch err := f.Reader.Get(ctx, types.NamespacedName{Name: node}, live); {
	case apierrors.IsNotFound(err):
		return nil, nil //nolint:nilnil // a missing Node is another kind of evidence
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
	return &handoff.Evidence{Kind: handoff.FenceConfirmed, Detail: "tainted by an operator with " + corev1.TaintNodeOutOfService}, nil
}

var _ handoff.Fencer = OutOfService{}
