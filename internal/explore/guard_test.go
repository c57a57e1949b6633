// SPDX-License-Identifier: Apache-2.0

package explore

import (
	"encoding/json"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/handoff"
	"github.com/virtloom/virtloom/internal/vmipatch"
)

// guards are what a change of a guest is refused for beside what it changes, as the
// controllers have them.
type guards uint8

const (
	// byVersion: whatever was written in between.
	byVersion guards = iota
	// byNothing: what only reports.
	byNothing
	// byGuest: whose the guest is, and whether it has ended (vmictrl).
	byGuest
	// byMove: that, and how its move stands (migrationctrl).
	byMove
	// byReport: what a report of how the guest is depends on (domainctrl).
	byReport
)

var guardSets = map[guards][]vmipatch.Guard{
	byVersion: {vmipatch.Version},
	byGuest: {
		vmipatch.Annotation(handoff.Annotation), vmipatch.Phase, vmipatch.Deletion,
		vmipatch.Label(v1.NodeNameLabel), vmipatch.Label(v1.MigrationTargetNodeNameLabel), vmipatch.Status("nodeName"),
	},
	byMove: {
		vmipatch.Deletion, vmipatch.Phase, vmipatch.Status("nodeName"), vmipatch.Status("migrationState"),
		vmipatch.Annotation(handoff.Annotation), vmipatch.Label(v1.NodeNameLabel), vmipatch.Label(v1.MigrationTargetNodeNameLabel),
	},
	byReport: {
		vmipatch.Deletion, vmipatch.Phase, vmipatch.Status("nodeName"), vmipatch.Status("evacuationNodeName"),
		vmipatch.Annotation(handoff.Annotation), vmipatch.Label(v1.NodeNameLabel), vmipatch.Label(v1.MigrationTargetNodeNameLabel),
	},
}

// patchKey is a patch, and what it is applied to.
type patchKey struct {
	from, want, have *guest
	// wasDeleting is of what the patch was made from, deleting of what it is applied to.
	wasDeleting, deleting bool
	guards                guards
}

// patched is what the API server makes of a change of a guest that others have written
// in between; nil if it refuses. It is the real patch.
func (k *memory) patched(p patchKey) *guest {
	if p.guards == byVersion {
		return nil
	}
	return k.patches.of(p, func() *guest {
		patch, err := vmipatch.Between(p.from.instance(1, p.wasDeleting), p.want.instance(1, p.wasDeleting), guardSets[p.guards]...)
		if err != nil {
			return nil
		}
		ops, err := jsonpatch.DecodePatch(patch)
		if err != nil {
			return nil
		}
		have := p.have.instance(1, p.deleting)
		have.ResourceVersion = "2" // it is asked only if another client has written in between
		text, err := ops.Apply([]byte(encode(have)))
		if err != nil {
			return nil
		}
		vmi := &v1.VirtualMachineInstance{}
		if err := json.Unmarshal(text, vmi); err != nil {
			return nil
		}
		return k.guest(vmi)
	})
}
