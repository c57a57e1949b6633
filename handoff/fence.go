// SPDX-License-Identifier: Apache-2.0

package handoff

import (
	"context"

	"k8s.io/apimachinery/pkg/types"
)

// EvidenceKind says how it is known that a guest does not run on a node.
type EvidenceKind string

const (
	// NodeGone: the API server itself, not a cache, says that the Node object does
	// not exist.
	NodeGone EvidenceKind = "NodeGone"
	// PodGone: the API server itself says that no Pod of the guest is left on the
	// node, or that all of them have ended.
	PodGone EvidenceKind = "PodGone"
	// FenceConfirmed: a Fencer cut the node off, or an operator vouches for it.
	FenceConfirmed EvidenceKind = "FenceConfirmed"
)

// Evidence is why a guest is believed not to run on a node.
type Evidence struct {
	// Kind says how it is known.
	Kind EvidenceKind
	// Detail is for people: which Pod, which fencing device.
	Detail string
}

func (e Evidence) cause() Cause {
	return map[EvidenceKind]Cause{NodeGone: CauseNodeGone, PodGone: CausePodGone, FenceConfirmed: CauseFenceReported}[e.Kind]
}

// Guest names the guest that a Fencer is asked about.
type Guest struct {
	// NamespacedName is the key of the VirtualMachineInstance.
	types.NamespacedName
	// UID is the UID of the VirtualMachineInstance.
	UID types.UID
	// Epoch is the epoch at which the guest's node went silent.
	Epoch uint64
}

// Fencer makes sure that a guest does not run on a node that is silent: by cutting
// the node's power or its way to the storage, or by asking who did.
type Fencer interface {
	// Fence returns the evidence, nil while there is none yet. It must not block
	// for long and is called again; it must be idempotent and safe for concurrent
	// use.
	Fence(ctx context.Context, g Guest, node string) (*Evidence, error)
}

// FencerFunc makes a function a Fencer.
type FencerFunc func(ctx context.Context, g Guest, node string) (*Evidence, error)

// Fence calls f.
func (f FencerFunc) Fence(ctx context.Context, g Guest, node string) (*Evidence, error) {
	return f(ctx, g, node)
}
