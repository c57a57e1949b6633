// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"github.com/virtloom/virtloom/domain/action"
	"github.com/virtloom/virtloom/domain/transport"
	"github.com/virtloom/virtloom/handoff"
)

// Preparations returns what this node has to do before [Decide], in order, for a VMI that it
// starts, receives or runs: [action.Prepare], whose result is Facts, Desired, CopyDisks,
// CopyBytes and Destinations of the snapshot, and [action.Listen], whose result is TargetEndpoint.
// Each may be repeated, and none touches a domain, so that a cached VMI is good enough. Where
// Prepare fails the error is PrepareError; where Listen does, only if it is Needed: later the
// domain, and not the tunnel, shows the outcome.
//
// The error is the PrepareError of a VMI for which nothing may be prepared, because its own
// object is the only evidence that it belongs here; see [Snapshot.Proof].
func Preparations(s Snapshot) ([]action.Action, error) {
	if !s.NeedsFiles() || s.PrepareError != nil || !s.SilentSince.IsZero() {
		return nil, s.PrepareError
	}
	lease, err := handoff.Of(s.VMI)
	if err != nil {
		return nil, nil //nolint:nilerr // Decide returns it
	}
	if !s.alive() {
		if _, err := s.proof(lease); err != nil {
			return nil, err
		}
	}
	target := handoff.RoleOf(lease, s.Node) == handoff.RoleTarget
	asked := target && lease.State == handoff.Preparing
	all := []action.Action{{Verb: action.Prepare, UID: s.VMI.UID, Needed: asked, Why: "the VMI is assigned to this node"}}
	if target {
		all = append(all, action.Action{
			Verb: action.Listen, Tunnel: transport.TunnelOf(s.VMI, s.Node), Needed: asked, Why: "the VMI migrates to this node",
		})
	}
	return all, nil
}

// NeedsFiles reports whether this node may need the files of the VMI. Where only an answer to
// a request of the lease is due, they must not delay it.
func (s Snapshot) NeedsFiles() bool {
	if s.VMI == nil || s.VMI.DeletionTimestamp != nil || s.VMI.IsFinal() {
		return false
	}
	lease, err := handoff.Of(s.VMI)
	if err != nil {
		return false
	}
	switch lease.State {
	case handoff.Lost, handoff.Fenced, handoff.Releasing:
		return false
	}
	return handoff.RoleOf(lease, s.Node) != handoff.RoleNone
}

// alive reports whether the domain of the VMI, and not that of an earlier VMI of its name, runs
// on this node. A domain that has lost its metadata may be the VMI's.
func (s Snapshot) alive() bool {
	return s.State != nil && s.State.Alive() && (!s.State.Ours() || s.State.Metadata.UID == s.VMI.UID)
}
