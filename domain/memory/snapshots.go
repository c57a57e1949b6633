// SPDX-License-Identifier: Apache-2.0

package memory

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"libvirt.org/go/libvirtxml"

	"github.com/virtloom/virtloom/domain"
)

// snapshots takes, lists, reverts and deletes snapshots.
type snapshots struct{ *state }

// snapshot is a stored state.
type snapshot struct {
	domain.Snapshot
	def    *libvirtxml.Domain
	status domain.Status
	sizes  map[string]uint64
}

// TakeSnapshot implements domain.Snapshotter. The times are those of a clock that advances by a
// second with each.
func (h *snapshots) TakeSnapshot(ctx context.Context, name string, s domain.Snapshot) error {
	return h.onSnapshots(ctx, "TakeSnapshot", name, func(g *guest) error {
		switch {
		case s.Name == "":
			return fmt.Errorf("name: Required value: %w", domain.ErrInvalid)
		case s.Memory && !g.state.Alive():
			return fmt.Errorf("no memory: %w", domain.ErrInvalidState)
		case g.lockedSnapshot(s.Name) >= 0:
			return fmt.Errorf("there is already a snapshot %s: %w", s.Name, domain.ErrInvalidState)
		}
		def, err := clone(g.def)
		if err != nil {
			return err
		}
		h.nextID++
		s.Created = time.Unix(int64(h.nextID), 0).UTC()
		kept := snapshot{Snapshot: s, def: def, status: domain.StatusShutoff, sizes: maps.Clone(g.sizes)}
		if s.Memory {
			kept.status = g.state.Status
		}
		g.snapshots = append(g.snapshots, kept)
		return nil
	})
}

// Snapshots implements domain.Snapshotter.
func (h *snapshots) Snapshots(ctx context.Context, name string) ([]domain.Snapshot, error) {
	var out []domain.Snapshot
	err := h.onSnapshots(ctx, "Snapshots", name, func(g *guest) error {
		for _, s := range g.snapshots {
			out = append(out, s.Snapshot)
		}
		return nil
	})
	return out, err
}

// RevertSnapshot implements domain.Snapshotter.
func (h *snapshots) RevertSnapshot(ctx context.Context, name, snapshot string) error {
	return h.onSnapshots(ctx, "RevertSnapshot", name, func(g *guest) error {
		i := g.lockedSnapshot(snapshot)
		if i < 0 {
			return fmt.Errorf("snapshot %s: %w", snapshot, domain.ErrNotFound)
		}
		kept := g.snapshots[i]
		def, err := clone(kept.def)
		if err != nil {
			return err
		}
		g.lockedGone()
		g.def, g.sizes = def, maps.Clone(kept.sizes)
		g.state.Status, g.state.Reason = kept.status, domain.ReasonFromSnapshot
		if kept.status == domain.StatusRunning {
			g.state.Reason = domain.ReasonUnknown
		}
		h.lockedEmit(name, "Reverted")
		return nil
	})
}

// DeleteSnapshot implements domain.Snapshotter.
func (h *snapshots) DeleteSnapshot(ctx context.Context, name, snapshot string) error {
	return h.onSnapshots(ctx, "DeleteSnapshot", name, func(g *guest) error {
		if i := g.lockedSnapshot(snapshot); i >= 0 {
			g.snapshots = slices.Delete(g.snapshots, i, i+1)
		}
		return nil
	})
}

func (g *guest) lockedSnapshot(name string) int {
	return slices.IndexFunc(g.snapshots, func(s snapshot) bool { return s.Name == name })
}

// onSnapshots is a call about the snapshots of a domain.
func (h *snapshots) onSnapshots(ctx context.Context, call, name string, f func(*guest) error) error {
	return h.call(ctx, call, name, func() error {
		g, ok := h.guests[name]
		if !ok {
			return fmt.Errorf("%s %s: %w", call, name, domain.ErrNotFound)
		}
		if err := f(g); err != nil {
			return fmt.Errorf("%s %s: %w", call, name, err)
		}
		return nil
	})
}
