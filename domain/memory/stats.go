// SPDX-License-Identifier: Apache-2.0

package memory

import (
	"context"
	"slices"
	"strings"

	"github.com/virtloom/virtloom/domain/stats"
)

// statistics reports the counters of the domains.
type statistics struct{ *state }

// SetStats sets the counters of a domain; its name, UUID and devices are filled in where they are
// missing.
func (h *statistics) SetStats(name string, s stats.Domain) bool {
	return h.running(name, func(g *guest) { g.stats = copyStats(s) })
}

// Stats implements domain.StatsReader.
func (h *statistics) Stats(ctx context.Context) ([]stats.Domain, error) {
	var out []stats.Domain
	err := h.call(ctx, "Stats", "", func() error {
		for _, g := range h.guests {
			if g.state.Alive() && !g.inbound {
				out = append(out, g.lockedStats())
			}
		}
		return nil
	})
	slices.SortFunc(out, func(a, b stats.Domain) int { return strings.Compare(a.Name, b.Name) })
	return out, err
}

func (g *guest) lockedStats() stats.Domain {
	s := copyStats(g.stats)
	s.Name, s.UUID = g.state.Name, g.state.UUID
	if s.VCPUs == nil {
		s.VCPUs = make([]stats.VCPU, vcpus(g.def))
	}
	if s.Memory == (stats.Memory{}) && g.def.Memory != nil {
		s.Memory.Current = uint64(g.def.Memory.Value) * bytesOf[g.def.Memory.Unit]
	}
	if l := g.def.Devices; l != nil {
		for i := len(s.Disks); i < len(l.Disks); i++ {
			d := stats.Disk{}
			if t := l.Disks[i].Target; t != nil {
				d.Target = t.Dev
			}
			if a := l.Disks[i].Alias; a != nil {
				d.Alias, d.Capacity = a.Name, g.lockedSize(a.Name)
			}
			s.Disks = append(s.Disks, d)
		}
		for i := len(s.Interfaces); i < len(l.Interfaces); i++ {
			n := stats.Interface{}
			if t := l.Interfaces[i].Target; t != nil {
				n.Device = t.Dev
			}
			if a := l.Interfaces[i].Alias; a != nil {
				n.Alias = a.Name
			}
			s.Interfaces = append(s.Interfaces, n)
		}
	}
	return s
}

// bytesOf are the units of memory in domains.
var bytesOf = map[string]uint64{"b": 1, "bytes": 1, "": 1 << 10, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}

func copyStats(s stats.Domain) stats.Domain {
	s.VCPUs, s.Disks, s.Interfaces = slices.Clone(s.VCPUs), slices.Clone(s.Disks), slices.Clone(s.Interfaces)
	return s
}
