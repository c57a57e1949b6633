// SPDX-License-Identifier: Apache-2.0

package handoff

import (
	"context"

	"k8s.io/apimachinery/pkg/types"
)

// EvidenceKind is the source of the evidence that a domain does not run on a node.
type EvidenceKind string

const (
	// NodeGone: the API server itself, not a cache, reports that the Node object
	// does not exist.
	NodeGone EvidenceKind = "NodeGone"
	// PodGone: the API server itself reports that no launcher Pod of the VMI is left
	// on the node, or that all of them have ended.
	PodGone EvidenceKind = "PodGone"
	// FenceConfirmed: a Fencer cut the node off, or an operator vouches for it.
	FenceConfirmed EvidenceKind = "FenceConfirmed"
)

// Evidence shows that a domain does not run on a node.
type Evidence struct {
	// Kind is the source of the evidence.
	Kind EvidenceKind
	// Detail is for readers: which Pod, which fencing device.
	Detail string
}

func (e Evidence) cause() Cause {
	return map[EvidenceKind]Cause{NodeGone: causeNodeGone, PodGone: causePodGone, FenceConfirmed: causeFenceReported}[e.Kind]
}

// Guest identifies the VMI for a Fencer.
type Guest struct {
	// NamespacedName is the key of the VirtualMachineInstance.
	types.NamespacedName
	// UID is the UID of the VirtualMachineInstance.
	UID types.UID
	// Epoch is the epoch at which the VMI's node went silent.
	Epoch uint64
}

// Fencer ensures that a domain does not run on an unresponsive node: by cutting the node's
// power or its access to the storage, or by querying the system that did.
type Fencer interface {
	// Fence returns the evidence, nil while there is none yet. It must not block
	// for long and is called again; it must be idempotent and safe for concurrent
	// use.
	Fence(ctx context.Context, g Guest, node string) (*Evidence, error)
}

// FencerFunc adapts a function to a Fencer.
type FencerFunc func(ctx context.Context, g Guest, node string) (*Evidence, error)

// Fence calls f.
func (f FencerFunc) Fence(ctx context.Context, g Guest, node string) (*Evidence, error) {
	return f(ctx, g, node)
}
