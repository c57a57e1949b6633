// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package libvirt

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	virt "libvirt.org/go/libvirt"
	"libvirt.org/go/libvirtxml"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/stats"
)

// statsGroups are the groups of counters in use. Other groups are expensive: libvirt queries QEMU
// for each.
const statsGroups = virt.DOMAIN_STATS_CPU_TOTAL | virt.DOMAIN_STATS_VCPU | virt.DOMAIN_STATS_BALLOON |
	virt.DOMAIN_STATS_BLOCK | virt.DOMAIN_STATS_INTERFACE

// statsFlags choose running domains, and not to wait for a busy one.
const statsFlags = virt.CONNECT_GET_ALL_DOMAINS_STATS_RUNNING | virt.CONNECT_GET_ALL_DOMAINS_STATS_PAUSED |
	virt.CONNECT_GET_ALL_DOMAINS_STATS_NOWAIT

// Stats implements domain.StatsReader. It has a connection of its own: a domain that has just
// become unresponsive delays the next query until the context ends, and no list.
func (d *Driver) Stats(ctx context.Context) ([]stats.Domain, error) {
	const op = "read statistics"
	if ctx.Err() != nil {
		return nil, ended(ctx, op, "")
	}
	return await(ctx, op, "", func() (out []stats.Domain, err error) {
		err = d.onOwnConnection(op, "", func(c *virt.Connect) error {
			records, err := bulk(c, statsGroups, statsFlags)
			for _, r := range records {
				s := r.stats()
				d.names.put(c, &s)
				out = append(out, s)
			}
			return err
		})
		slices.SortFunc(out, func(a, b stats.Domain) int { return strings.Compare(a.Name, b.Name) })
		return out, err
	})
}

// stats reads the counters of a record.
func (r *record) stats() stats.Domain {
	n := func(format string, args ...any) uint64 { return r.numbers[fmt.Sprintf(format, args...)] }
	s := stats.Domain{
		Name: r.name, UUID: r.uuid, CPUTime: time.Duration(n("cpu.time")),
		Memory: stats.Memory{
			Current: n("balloon.current") << 10, Resident: n("balloon.rss") << 10,
			Available: n("balloon.available") << 10, Unused: n("balloon.unused") << 10, Usable: n("balloon.usable") << 10,
			SwappedIn: n("balloon.swap_in") << 10, SwappedOut: n("balloon.swap_out") << 10,
		},
	}
	for i := range n("vcpu.maximum") {
		if _, plugged := r.numbers[fmt.Sprintf("vcpu.%d.state", i)]; plugged {
			s.VCPUs = append(s.VCPUs, stats.VCPU{
				Time: time.Duration(n("vcpu.%d.time", i)), Wait: time.Duration(n("vcpu.%d.wait", i)),
			})
		}
	}
	for i := range n("block.count") {
		s.Disks = append(s.Disks, stats.Disk{
			Target:       r.texts[fmt.Sprintf("block.%d.name", i)],
			ReadRequests: n("block.%d.rd.reqs", i), ReadBytes: n("block.%d.rd.bytes", i),
			WriteRequests: n("block.%d.wr.reqs", i), WriteBytes: n("block.%d.wr.bytes", i),
			FlushRequests: n("block.%d.fl.reqs", i),
			Capacity:      n("block.%d.capacity", i), Allocation: n("block.%d.allocation", i),
		})
	}
	for i := range n("net.count") {
		s.Interfaces = append(s.Interfaces, stats.Interface{
			Device:        r.texts[fmt.Sprintf("net.%d.name", i)],
			ReceivedBytes: n("net.%d.rx.bytes", i), ReceivedPackets: n("net.%d.rx.pkts", i),
			ReceiveErrors: n("net.%d.rx.errs", i), ReceiveDrops: n("net.%d.rx.drop", i),
			SentBytes: n("net.%d.tx.bytes", i), SentPackets: n("net.%d.tx.pkts", i),
			SendErrors: n("net.%d.tx.errs", i), SendDrops: n("net.%d.tx.drop", i),
		})
	}
	return s
}

// names remembers the aliases of the devices of running domains in the spec, which counters lack.
// They are read once, and again when a device of the domain was added or removed.
type names struct {
	mu sync.Mutex
	// changes counts calls of forget, so that an answer read concurrently is not remembered.
	changes uint64
	domains map[string]map[string]string // domain → target or host device → alias
}

// put fills in the aliases.
func (n *names) put(c *virt.Connect, s *stats.Domain) {
	n.mu.Lock()
	known := n.domains[s.Name]
	n.mu.Unlock()
	if !covers(known, s) {
		known = n.ask(c, s.Name)
	}
	for i := range s.Disks {
		s.Disks[i].Alias = known[s.Disks[i].Target]
	}
	for i := range s.Interfaces {
		s.Interfaces[i].Alias = known[s.Interfaces[i].Device]
	}
}

// covers reports whether every device is known; one without an alias is known too.
func covers(known map[string]string, s *stats.Domain) bool {
	for _, d := range s.Disks {
		if _, ok := known[d.Target]; !ok {
			return false
		}
	}
	for _, i := range s.Interfaces {
		if _, ok := known[i.Device]; !ok {
			return false
		}
	}
	return true
}

// ask reads the aliases from the live XML. A domain that has ended meanwhile has none.
func (n *names) ask(c *virt.Connect, name string) map[string]string {
	n.mu.Lock()
	before := n.changes
	n.mu.Unlock()
	known := map[string]string{}
	err := withDomain(c, name, func(dom *virt.Domain) error {
		d, err := parsed(dom, 0)
		if err != nil || d.Devices == nil {
			return err
		}
		for _, disk := range d.Devices.Disks {
			if disk.Target != nil {
				known[disk.Target.Dev] = specAlias(disk.Alias)
			}
		}
		for _, link := range d.Devices.Interfaces {
			if link.Target != nil {
				known[link.Target.Dev] = specAlias(link.Alias)
			}
		}
		return nil
	})
	if err != nil {
		return nil
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.domains == nil {
		n.domains = map[string]map[string]string{}
	}
	if n.changes == before {
		n.domains[name] = known
	}
	return known
}

// forget discards the aliases of a domain.
func (n *names) forget(name string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.changes++
	delete(n.domains, name)
}

// forgetAll is for when events may have been missed.
func (n *names) forgetAll() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.changes++
	n.domains = nil
}

// specAlias returns an alias that comes from a spec; libvirt assigns its own to others.
func specAlias(a *libvirtxml.DomainAlias) string {
	if a == nil || !strings.HasPrefix(a.Name, domain.AliasPrefix) {
		return ""
	}
	return a.Name
}
