// SPDX-License-Identifier: Apache-2.0

package domaintest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/virtloom/virtloom/domain"
)

// migrateScript is how migrations go.
type migrateScript struct{ takes time.Duration }

// job is a migration under way.
type job struct {
	once sync.Once
	done chan struct{} // closed when it has to end
	why  error
}

func (j *job) stop(why error) {
	j.once.Do(func() {
		j.why = why
		close(j.done)
	})
}

// Connect makes peer the destination of migrations to uri.
func (h *Hypervisor) Connect(uri string, peer *Hypervisor) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.peers[uri] = peer
}

// MigrationTakes sets how long a migration copies memory; at first no time. Use
// a [Fault] of the call Migrate for one that fails before it begins.
func (h *Hypervisor) MigrationTakes(d time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.migrate.takes = d
}

// Migrate implements domain.Migrator.
func (h *Hypervisor) Migrate(ctx context.Context, req domain.MigrationRequest) error {
	var j *job
	var peer *Hypervisor
	var takes time.Duration
	err := h.call(ctx, "Migrate", req.Domain, func() (err error) {
		takes = h.migrate.takes
		j, peer, err = h.lockedBegin(req)
		return err
	})
	if err != nil {
		return wrap(req, err)
	}
	if err := h.prepare(peer, req); err != nil {
		h.end(req.Domain)
		return wrap(req, err)
	}
	if takes > 0 {
		t := time.NewTimer(takes)
		defer t.Stop()
		select {
		case <-t.C:
		case <-j.done:
		case <-ctx.Done():
			j.stop(fmt.Errorf("%w: %w", domain.ErrMigrationAborted, ctx.Err()))
		}
	}
	return wrap(req, h.finish(peer, req, j))
}

func wrap(req domain.MigrationRequest, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("migrate %s to %s: %w", req.Domain, req.DestinationURI, err)
}

// lockedBegin needs h.mu.
func (h *Hypervisor) lockedBegin(req domain.MigrationRequest) (*job, *Hypervisor, error) {
	g, ok := h.guests[req.Domain]
	peer := h.peers[req.DestinationURI]
	switch {
	case !ok:
		return nil, nil, domain.ErrNotFound
	case !g.state.Alive() || g.job != nil || g.inbound:
		return nil, nil, domain.ErrInvalidState
	case peer == nil:
		return nil, nil, errors.New("no such destination")
	}
	g.job = &job{done: make(chan struct{})}
	return g.job, peer, nil
}

// prepare lets the guest appear at the destination, standing still.
func (h *Hypervisor) prepare(peer *Hypervisor, req domain.MigrationRequest) error {
	h.mu.Lock()
	g, ok := h.guests[req.Domain]
	if !ok {
		h.mu.Unlock()
		return domain.ErrNotFound
	}
	arriving := &guest{state: g.state, inbound: true}
	def, err := clone(g.def)
	h.mu.Unlock()
	if req.Definition != nil {
		def, err = clone(req.Definition)
	}
	if err != nil {
		return err
	}
	arriving.def = def
	if req.Definition != nil {
		if m, ours, err := domain.MetadataOf(def); err == nil && ours {
			arriving.state.Metadata = m
		}
		def.Metadata = nil
	}
	peer.mu.Lock()
	defer peer.mu.Unlock()
	if peer.down != nil {
		return errors.New("the destination cannot be reached")
	}
	if old, exists := peer.guests[req.Domain]; exists && old.state.Alive() {
		return fmt.Errorf("runs at the destination already: %w", domain.ErrInvalidState)
	}
	peer.nextID++
	arriving.id = peer.nextID
	arriving.state.Status, arriving.state.Reason = domain.StatusPaused, domain.ReasonMigration
	peer.guests[req.Domain] = arriving
	peer.lockedTell(req.Domain, "Started")
	return nil
}

// finish moves the guest, unless the job was stopped.
func (h *Hypervisor) finish(peer *Hypervisor, req domain.MigrationRequest, j *job) error {
	defer h.end(req.Domain)
	h.mu.Lock()
	g, ok := h.guests[req.Domain]
	select {
	case <-j.done:
		h.mu.Unlock()
		peer.forget(req.Domain)
		return j.why
	default:
	}
	if !ok || !g.state.Alive() {
		h.mu.Unlock()
		peer.forget(req.Domain)
		return errors.New("the guest ended")
	}
	paused := req.Paused || g.state.Status == domain.StatusPaused
	g.state.Status, g.state.Reason = domain.StatusShutoff, domain.ReasonMigrated
	h.lockedTell(req.Domain, "Stopped")
	h.mu.Unlock()
	peer.arrive(req.Domain, paused)
	return nil
}

// forget removes a guest that did not arrive.
func (h *Hypervisor) forget(name string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if g, ok := h.guests[name]; ok && g.inbound {
		delete(h.guests, name)
		h.lockedTell(name, "Undefined")
	}
}

func (h *Hypervisor) arrive(name string, paused bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	g, ok := h.guests[name]
	if !ok {
		return
	}
	g.inbound = false
	g.state.Status, g.state.Reason = domain.StatusRunning, domain.ReasonUnknown
	if paused {
		g.state.Status, g.state.Reason = domain.StatusPaused, domain.ReasonUser
	}
	h.lockedTell(name, "Resumed")
}

// end forgets the job.
func (h *Hypervisor) end(name string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if g, ok := h.guests[name]; ok {
		g.job = nil
	}
}

// MigrationProgress implements domain.Migrator.
func (h *Hypervisor) MigrationProgress(ctx context.Context, name string) (domain.Progress, error) {
	var p domain.Progress
	err := h.call(ctx, "MigrationProgress", name, func() error {
		g, ok := h.guests[name]
		if !ok {
			return fmt.Errorf("progress of %s: %w", name, domain.ErrNotFound)
		}
		if g.job != nil {
			p = domain.Progress{Active: true, Total: 64 << 20, Processed: 32 << 20, Remaining: 32 << 20, Iteration: 1}
		}
		return nil
	})
	return p, err
}

// AbortMigration implements domain.Migrator.
func (h *Hypervisor) AbortMigration(ctx context.Context, name string) error {
	return h.call(ctx, "AbortMigration", name, func() error {
		g, ok := h.guests[name]
		if !ok {
			return fmt.Errorf("abort migration of %s: %w", name, domain.ErrNotFound)
		}
		if g.job != nil {
			g.job.stop(domain.ErrMigrationAborted)
		}
		return nil
	})
}
