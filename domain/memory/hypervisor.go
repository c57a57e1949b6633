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
)

// Hypervisor is a hypervisor in memory. Make one with [New]; it is safe for concurrent use.
type Hypervisor struct {
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
	clock   clock.Clock   // of migrations
	takes   time.Duration // duration of migrations
	sockets domain.Sockets

	capabilities domain.Capabilities
	command      func(name, command string) (string, error) // answers agents' commands
	agents       *domain.GuestInfo                          // agent of new domains
}

// guest is one domain.
type guest struct {
	state   domain.State
	def     *libvirtxml.Domain // without our metadata
	id      int
	deaf    bool // ignores a shutdown
	load    Load
	job     *job            // its outbound migration; may be nil
	coming  *job            // its inbound migration; may be nil
	last    domain.Progress // of its last migration
	inbound bool            // it has not arrived yet

	agent     *domain.GuestInfo // nil without one
	frozen    bool
	reboots   int
	sizes     map[string]uint64 // of disks and of their block devices, by alias
	snapshots []snapshot
	console   *terminal // nil while it is not open
	stats     domain.Stats
}

var (
	_ domain.Hypervisor       = (*Hypervisor)(nil)
	_ domain.Migrator         = (*Hypervisor)(nil)
	_ domain.PostCopier       = (*Hypervisor)(nil)
	_ domain.MigrationTuner   = (*Hypervisor)(nil)
	_ domain.SocketMigrator   = (*Hypervisor)(nil)
	_ domain.GuestAgent       = (*Hypervisor)(nil)
	_ domain.StatsReader      = (*Hypervisor)(nil)
	_ domain.Snapshotter      = (*Hypervisor)(nil)
	_ domain.ConsoleOpener    = (*Hypervisor)(nil)
	_ domain.MemoryHotplugger = (*Hypervisor)(nil)
)

// New returns an empty hypervisor of a host with that name, without KVM.
func New(name string) *Hypervisor {
	return &Hypervisor{
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
		clock:  clock.RealClock{},
	}
}

// SetHost replaces the answer of Host.
func (h *Hypervisor) SetHost(host domain.Host) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.host = host.Clone()
}

// Host implements domain.Hypervisor.
func (h *Hypervisor) Host(ctx context.Context) (domain.Host, error) {
	var out domain.Host
	err := h.call(ctx, "Host", "", func() error {
		out = h.host.Clone()
		return nil
	})
	return out, err
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
			err = domain.PutMetadata(out.Domain, g.state.Metadata)
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

// Apply implements domain.Hypervisor.
func (h *Hypervisor) Apply(ctx context.Context, op domain.Operation) error {
	if err := op.Validate(); err != nil {
		return err
	}
	return h.call(ctx, string(op.Verb), op.Domain, func() error {
		if err := h.lockedApply(op); err != nil {
			return fmt.Errorf("%s: %w", op, err)
		}
		return nil
	})
}

// lockedApply needs h.mu.
func (h *Hypervisor) lockedApply(op domain.Operation) error {
	if op.Verb == domain.Start {
		return h.lockedStart(op)
	}
	g, ok := h.guests[op.Domain]
	if !ok {
		if op.Verb == domain.Destroy || op.Verb == domain.Undefine {
			return nil
		}
		return domain.ErrNotFound
	}
	do, ok := map[domain.Verb]func(*guest, domain.Operation) error{
		domain.Shutdown:     h.lockedShutdown,
		domain.Destroy:      h.lockedDestroy,
		domain.Undefine:     h.lockedUndefine,
		domain.Suspend:      h.lockedSuspend,
		domain.Resume:       h.lockedResume,
		domain.SetMetadata:  h.lockedMetadata,
		domain.AttachDevice: h.lockedDevice,
		domain.DetachDevice: h.lockedDevice,
		domain.UpdateDevice: h.lockedDevice,
		domain.Reset:        h.lockedReset,
		domain.Reboot:       h.lockedReboot,
		domain.SetVCPUs:     h.lockedVCPUs,
		domain.ResizeDisk:   h.lockedResize,
	}[op.Verb]
	if !ok {
		return domain.ErrUnsupported
	}
	return do(g, op)
}

func (h *Hypervisor) lockedDestroy(g *guest, _ domain.Operation) error {
	if g.state.Alive() {
		h.lockedStop(g, domain.ReasonDestroyed)
	}
	return nil
}

func (h *Hypervisor) lockedUndefine(g *guest, _ domain.Operation) error {
	if g.state.Alive() {
		return domain.ErrInvalidState
	}
	delete(h.guests, g.state.Name)
	h.lockedEmit(g.state.Name, "Undefined")
	return nil
}

func (h *Hypervisor) lockedMetadata(g *guest, op domain.Operation) error {
	xml, err := op.Metadata.XML()
	if err != nil {
		return err
	}
	if g.state.Metadata, _, err = domain.ParseMetadataElement(xml); err != nil {
		return err
	}
	h.lockedEmit(g.state.Name, "MetadataChange")
	return nil
}

func (h *Hypervisor) lockedStart(op domain.Operation) error {
	old, exists := h.guests[op.Domain]
	if exists && old.state.Alive() {
		return nil
	}
	if exists && old.state.UUID != op.Definition.UUID {
		return fmt.Errorf("defined already with UUID %s: %w", old.state.UUID, domain.ErrInvalidState)
	}
	if !slices.Contains([]string{"kvm", "qemu", "test"}, op.Definition.Type) {
		return fmt.Errorf("domain type %q: %w", op.Definition.Type, domain.ErrInvalid)
	}
	def, err := clone(op.Definition)
	if err != nil {
		return err
	}
	m, _, err := domain.MetadataOf(def)
	if err != nil {
		return fmt.Errorf("%w: %w", domain.ErrInvalid, err)
	}
	def.Metadata = nil
	h.nextID++
	g := &guest{def: def, id: h.nextID, state: domain.State{
		Name: op.Domain, UUID: def.UUID, Status: domain.StatusRunning, Reason: domain.ReasonUnknown, Metadata: m,
	}}
	if h.agents != nil {
		info := copyInfo(*h.agents)
		g.agent = &info
	}
	if exists { // state of its disks
		g.sizes, g.snapshots = old.sizes, old.snapshots
		if old.agent != nil {
			g.agent = old.agent
		}
	}
	if op.Paused {
		g.state.Status, g.state.Reason = domain.StatusPaused, domain.ReasonUser
	}
	h.guests[op.Domain] = g
	h.lockedEmit(op.Domain, "Started")
	return nil
}

func (h *Hypervisor) lockedShutdown(g *guest, _ domain.Operation) error {
	switch {
	case !g.state.Alive():
	case g.state.Status == domain.StatusPaused:
		return domain.ErrInvalidState
	case !g.deaf:
		h.lockedStop(g, domain.ReasonShutdown)
	}
	return nil
}

// lockedStop ends the domain, and its inbound or outbound migration.
func (h *Hypervisor) lockedStop(g *guest, why domain.Reason) {
	g.state.Status, g.state.Reason = domain.StatusShutoff, why
	g.lockedGone()
	if g.job != nil {
		g.job.stop(fmt.Errorf("the guest ended: %s", why))
		if g.job.broken {
			g.job = nil
		}
	}
	if g.coming != nil {
		g.coming.stop(fmt.Errorf("the guest at the destination ended: %s", why))
	}
	h.lockedEmit(g.state.Name, "Stopped")
}

func (h *Hypervisor) lockedSuspend(g *guest, _ domain.Operation) error {
	return h.lockedSwitch(g, domain.StatusRunning, domain.StatusPaused, domain.ReasonUser)
}

func (h *Hypervisor) lockedResume(g *guest, _ domain.Operation) error {
	return h.lockedSwitch(g, domain.StatusPaused, domain.StatusRunning, domain.ReasonUnknown)
}

func (h *Hypervisor) lockedSwitch(g *guest, from, to domain.Status, why domain.Reason) error {
	switch {
	case g.state.Status == to:
		return nil
	case g.state.Status != from || g.inbound || g.lockedElsewhere():
		return domain.ErrInvalidState
	}
	h.lockedSettle(g)
	g.state.Status, g.state.Reason = to, why
	if g.job != nil {
		g.job.copying.still = to == domain.StatusPaused
	}
	h.lockedEmit(g.state.Name, string(to))
	return nil
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
func (h *Hypervisor) lockedEmit(name, why string) {
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
