// SPDX-License-Identifier: Apache-2.0

package memory

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/utils/clock"
	"libvirt.org/go/libvirtxml"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/guestagent"
	"github.com/virtloom/virtloom/domain/stats"
)

// Hypervisor is a hypervisor in memory. Make one with [New]; it is safe for concurrent use.
type Hypervisor struct {
	*state
	operations
	hardware
	node
	guestAgents
	consoles
	snapshots
	statistics
	migrations
	connections
	source
	target
	injection
	actions
}

// state is what the parts of a hypervisor share.
type state struct {
	hints domain.Hints

	mu      sync.Mutex
	name    string
	host    domain.Host
	guests  map[string]*guest
	faults  []*fault
	links   map[string]*Link  // by destination URI
	files   map[string]uint64 // sizes by path
	calls   map[string]int    // by verb
	down    error             // why the connection is lost; nil while connected
	lost    chan struct{}     // closed when it is
	silent  bool              // events are lost
	nextID  int
	clock   clock.RealClock // of migrations
	takes   time.Duration   // duration of migrations
	sockets domain.Sockets

	capabilities domain.Capabilities
	command      func(name, command string) (string, error) // answers agents' commands
	agents       *guestagent.Info                           // agent of new domains
}

// guest is one domain.
type guest struct {
	state   domain.State
	def     *libvirtxml.Domain // without our metadata
	id      int
	deaf    bool // ignores a shutdown
	load    Load
	job     *migrationJob   // its outbound migration; may be nil
	coming  *migrationJob   // its inbound migration; may be nil
	last    domain.Progress // of its last migration
	inbound bool            // it has not arrived yet

	agent     *guestagent.Info // nil without one
	frozen    bool
	reboots   int
	sizes     map[string]uint64 // of disks and of their block devices, by alias
	snapshots []snapshot
	console   *terminal // nil while it is not open
	stats     stats.Domain
}

var (
	_ domain.Hypervisor         = (*Hypervisor)(nil)
	_ domain.Migrator           = (*Hypervisor)(nil)
	_ domain.PostCopier         = (*Hypervisor)(nil)
	_ domain.MigrationTuner     = (*Hypervisor)(nil)
	_ domain.SocketMigrator     = (*Hypervisor)(nil)
	_ domain.GuestAgent         = (*Hypervisor)(nil)
	_ domain.StatsReader        = (*Hypervisor)(nil)
	_ domain.Snapshotter        = (*Hypervisor)(nil)
	_ domain.ConsoleOpener      = (*Hypervisor)(nil)
	_ domain.MemoryHotplugger   = (*Hypervisor)(nil)
	_ domain.CapabilitiesReader = (*Hypervisor)(nil)
)

// New returns an empty hypervisor of a host with that name, without KVM.
func New(name string) *Hypervisor {
	s := &state{
		name: name,
		host: domain.Host{
			Name: name, Arch: "x86_64", Hypervisor: "MEMORY", Version: "1.0.0", LibraryVersion: "1.0.0",
			KVMReason: "guests live in memory", CPUs: 4, MemoryBytes: 16 << 30,
		},
		guests: map[string]*guest{},
		links:  map[string]*Link{},
		files:  map[string]uint64{},
		calls:  map[string]int{},
		lost:   make(chan struct{}),
	}
	return &Hypervisor{
		state: s, operations: operations{s}, hardware: hardware{s}, node: node{s}, guestAgents: guestAgents{s}, consoles: consoles{s},
		snapshots: snapshots{s}, statistics: statistics{s}, migrations: migrations{s}, connections: connections{s}, source: source{s}, target: target{s},
		injection: injection{s}, actions: actions{s},
	}
}

// List implements domain.Hypervisor.
func (h *Hypervisor) List(ctx context.Context) ([]domain.State, error) {
	var out []domain.State
	err := h.call(ctx, "List", "", func() error {
		for _, g := range h.guests {
			s := g.state
			s.Metadata = domain.Metadata{} // only Get returns it
			out = append(out, s)
		}
		return nil
	})
	slices.SortFunc(out, func(a, b domain.State) int { return strings.Compare(a.Name, b.Name) })
	return out, err
}

// Get implements domain.Hypervisor.
func (h *Hypervisor) Get(ctx context.Context, name string) (domain.State, error) {
	var out domain.State
	err := h.call(ctx, "Get", name, func() error {
		g, ok := h.guests[name]
		if !ok {
			return fmt.Errorf("get %s: %w", name, domain.ErrNotFound)
		}
		out = g.state
		var err error
		if out.Domain, err = clone(g.def); err != nil {
			return err
		}
		if out.Alive() {
			id := g.id
			out.Domain.ID = &id
			g.showAgent(out.Domain)
		}
		if g.state.Ours() {
			err = g.state.Metadata.Put(out.Domain)
		}
		if err == nil { // a copy
			out.Metadata, _, err = domain.MetadataOf(out.Domain)
		}
		return err
	})
	return out, err
}

// Watch implements domain.Hypervisor.
func (h *Hypervisor) Watch(ctx context.Context) (<-chan domain.Event, error) {
	if err := h.call(ctx, "Watch", "", func() error { return nil }); err != nil {
		return nil, err
	}
	return h.hints.Watch(ctx), nil
}

// Close ends all watches, and the migrations to other hypervisors.
func (h *Hypervisor) Close() error {
	h.mu.Lock()
	for _, g := range h.guests {
		if g.job != nil {
			g.job.stop(errors.New("the hypervisor ended"))
		}
	}
	h.mu.Unlock()
	h.hints.Close()
	return nil
}

// lockedStop ends the domain, and its inbound or outbound migration.
func (h *state) lockedStop(g *guest, why domain.Reason) {
	g.state.Status, g.state.Reason = domain.StatusShutoff, why
	g.lockedGone()
	if g.job != nil {
		g.job.stop(fmt.Errorf("the domain ended: %s", why))
		if g.job.broken {
			g.job = nil
		}
	}
	if g.coming != nil {
		g.coming.stop(fmt.Errorf("the domain at the destination ended: %s", why))
	}
	h.lockedEmit(g.state.Name, "Stopped")
}

// lockedGone drops the state of the domain's process.
func (g *guest) lockedGone() {
	g.frozen = false
	if g.console != nil {
		g.console.hangUp()
		g.console = nil
	}
}

// lockedEmit passes a hint on unless events are lost.
func (h *state) lockedEmit(name, why string) {
	if h.down == nil && !h.silent {
		h.hints.Tell(domain.Event{Kind: domain.Changed, Domain: name, Why: why})
	}
}

// clone copies a domain as a daemon would: through its XML.
func clone(d *libvirtxml.Domain) (*libvirtxml.Domain, error) {
	s, err := d.Marshal()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", domain.ErrInvalid, err)
	}
	out := &libvirtxml.Domain{}
	if err := out.Unmarshal(s); err != nil {
		return nil, fmt.Errorf("%w: %w", domain.ErrInvalid, err)
	}
	return out, nil
}
