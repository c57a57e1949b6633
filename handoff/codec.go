// SPDX-License-Identifier: Apache-2.0

package handoff

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// version is the version of the encoding. A lease of a newer version is not read:
// its meaning may have changed. Fields that a newer minor release adds within a
// version are kept as they are.
const version = 1

// ErrNotALease means that an annotation cannot be read as a lease. The VMI's owner is
// then unknown, and its domain must be left alone.
var ErrNotALease = errors.New("handoff: not a lease")

// wire is the lease as it is stored.
type wire struct {
	Version  int          `json:"version"`
	State    State        `json:"state,omitempty"`
	Epoch    uint64       `json:"epoch"`
	Holder   string       `json:"holder,omitempty"`
	Target   string       `json:"target,omitempty"`
	Tag      types.UID    `json:"tag,omitempty"`
	Was      State        `json:"was,omitempty"`
	Stalled  bool         `json:"stalled,omitempty"`
	Cause    Cause        `json:"cause,omitempty"`
	Deadline *metav1.Time `json:"deadline,omitempty"`
	Open     []Command    `json:"open,omitempty"`
	Outcomes []Outcome    `json:"outcomes,omitempty"`
}

// fields are the names of wire's fields.
var fields = []string{"version", "state", "epoch", "holder", "target", "tag", "was", "stalled", "cause", "deadline", "open", "outcomes"}

// MarshalJSON encodes the lease. Fields that this version does not know and that the
// lease had when it was read are kept; the order of all fields is stable.
func (l Lease) MarshalJSON() ([]byte, error) {
	raw, err := json.Marshal(wire{
		Version: version, State: l.State, Epoch: l.Epoch, Holder: l.Holder, Target: l.Target, Tag: l.Tag, Was: l.Was,
		Stalled: l.Stalled, Cause: l.Cause, Deadline: l.Deadline, Open: l.Open, Outcomes: l.Outcomes,
	})
	if err != nil || len(l.unknown) == 0 {
		return raw, err
	}
	more, err := json.Marshal(l.unknown) // sorted by name
	if err != nil {
		return nil, err
	}
	return append(append(raw[:len(raw)-1], ','), more[1:]...), nil
}

// UnmarshalJSON decodes a lease and checks that it is consistent. The error is
// ErrNotALease.
func (l *Lease) UnmarshalJSON(raw []byte) error {
	var w wire
	known := strictly(raw, &w)
	if !known {
		w = wire{}
		if err := json.Unmarshal(raw, &w); err != nil {
			return fmt.Errorf("%w: %w", ErrNotALease, err)
		}
	}
	if w.Version != version {
		return fmt.Errorf("%w: version %d is not supported, want %d", ErrNotALease, w.Version, version)
	}
	n := Lease{
		State: w.State, Epoch: w.Epoch, Holder: w.Holder, Target: w.Target, Tag: w.Tag, Was: w.Was,
		Stalled: w.Stalled, Cause: w.Cause, Deadline: w.Deadline, Open: w.Open, Outcomes: w.Outcomes,
	}
	if why := n.broken(); why != "" {
		return fmt.Errorf("%w: %s", ErrNotALease, why)
	}
	if known {
		*l = n
		return nil
	}
	unknown := map[string]json.RawMessage{}
	if err := json.Unmarshal(raw, &unknown); err != nil {
		return fmt.Errorf("%w: %w", ErrNotALease, err)
	}
	// The decoder takes names in any case; kept beside the right one, such a name
	// would overrule it when the lease is read again.
	maps.DeleteFunc(unknown, func(name string, _ json.RawMessage) bool {
		return slices.ContainsFunc(fields, func(f string) bool { return strings.EqualFold(f, name) })
	})
	if len(unknown) > 0 {
		n.unknown = unknown
	}
	*l = n
	return nil
}

// strictly decodes a lease that has no unknown field anywhere, as nearly all have, and
// reports whether it is one. Every decision reads the lease, so saving one pass over the
// text pays off.
func strictly(raw []byte, w *wire) bool {
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.DisallowUnknownFields()
	return dec.Decode(w) == nil && len(bytes.TrimSpace(raw[dec.InputOffset():])) == 0
}

// broken returns the contradiction within a lease, empty if there is none.
func (l Lease) broken() string {
	_, known := states[l.State]
	switch {
	case !known:
		return fmt.Sprintf("state %q is unknown", l.State)
	case l.heldState() != (l.Holder != ""):
		return fmt.Sprintf("state %q with holder %q", l.State, l.Holder)
	case l.InMove() && l.Target == "", l.Target != "" && !l.InMove() && !l.Switching():
		return fmt.Sprintf("state %q with target %q", l.State, l.Target)
	case l.Target != "" && l.Target == l.Holder:
		return fmt.Sprintf("node %q is both holder and target", l.Target)
	case l.Stalled && l.State != Moving:
		return fmt.Sprintf("stalled in state %q", l.State)
	}
	return l.brokenSilence()
}

// heldState reports whether a node holds, or is offered, the VMI in this state.
func (l Lease) heldState() bool {
	return l.State != Unclaimed && l.State != Claimed && l.State != Released && l.State != Fenced
}

// brokenSilence returns the contradiction in the state that the lease had before its
// holder went silent.
func (l Lease) brokenSilence() string {
	switch {
	case l.State != Lost && l.Was == Unclaimed:
		return ""
	case l.State != Lost, !canBeLost(l.Was):
		return fmt.Sprintf("state %q was %q", l.State, l.Was)
	case (l.Target != "") != (l.Was == Moving):
		return fmt.Sprintf("state %q, which was %q, with target %q", l.State, l.Was, l.Target)
	}
	return ""
}

func canBeLost(s State) bool {
	t, found := rowFor(Suspect, s)
	return found && t.to == Lost
}

func equalUnknown(a, b map[string]json.RawMessage) bool {
	return maps.EqualFunc(a, b, func(x, y json.RawMessage) bool { return bytes.Equal(x, y) })
}
