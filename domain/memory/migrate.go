// SPDX-License-Identifier: Apache-2.0

package memory

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"libvirt.org/go/libvirtxml"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/migrate"
)

// migrationJob is a migration under way. The mutex of the source's hypervisor guards all fields but those
// set once.
type migrationJob struct {
	req  domain.MigrationRequest // set once
	link *Link                   // set once
	peer *Hypervisor             // set once

	before *migrationJob // the job that this one resumes; may be nil; set once

	copying  copying
	prepared bool   // the destination waits for the guest
	limit    uint64 // MiB/s
	broken   bool   // broken after the switch to post-copy, waiting to be resumed

	switched chan struct{} // closed when the guest runs at the destination by post-copy
	changed  chan struct{} // holds one token when the copy's settings have changed
	once     sync.Once
	done     chan struct{} // closed to end it
	why      error
	over     chan struct{} // closed when it has ended
	err      error         // its outcome; set before over is closed
}

func (j *migrationJob) stop(why error) {
	j.once.Do(func() {
		j.why = why
		close(j.done)
	})
}

func (j *migrationJob) poke() {
	select {
	case j.changed <- struct{}{}:
	default:
	}
}

// migrations begins and controls the migrations from here.
type migrations struct{ *state }

// Migrate implements domain.Migrator.
func (h *migrations) Migrate(ctx context.Context, req domain.MigrationRequest) error {
	var j *migrationJob
	var lost <-chan struct{}
	from := (*source)(h)
	err := h.call(ctx, "Migrate", req.Domain, func() (err error) {
		lost = h.lost
		if j, err = h.lockedBegin(req); err == nil {
			go from.run(j)
		}
		return err
	})
	if err != nil {
		return wrap(req, err)
	}
	select {
	case <-j.over:
	case <-lost:
		return wrap(req, domain.ErrDisconnected)
	case <-ctx.Done():
		h.mu.Lock()
		h.lockedAbort(j, fmt.Errorf("%w: %w", domain.ErrMigrationAborted, ctx.Err()))
		h.mu.Unlock()
		<-j.over
	}
	return wrap(req, j.err)
}

func wrap(req domain.MigrationRequest, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("migrate %s to %s: %w", req.Domain, req.DestinationURI, err)
}

// lockedBegin checks the request and makes its job. It needs h.mu.
func (h *migrations) lockedBegin(req domain.MigrationRequest) (*migrationJob, error) {
	g, ok := h.guests[req.Domain]
	link := h.lockedLink(req.DestinationURI)
	switch {
	case !ok:
		return nil, domain.ErrNotFound
	case !slices.Contains([]string{"", "zstd"}, req.Compression):
		return nil, fmt.Errorf("compression %q: %w", req.Compression, domain.ErrUnsupported)
	case req.Resume:
		return h.lockedResumeJob(g, link)
	case !g.state.Alive() || g.job != nil || g.inbound || g.lockedElsewhere():
		return nil, domain.ErrInvalidState
	case link.peer == nil:
		return nil, errors.New("no such destination")
	}
	j := newJob(req, link)
	j.limit = req.BandwidthMiB
	j.copying.maxDowntime, j.copying.converge = req.MaxDowntime, req.AutoConverge
	if req.MaxDowntime <= 0 {
		j.copying.maxDowntime = defaultMaxDowntime
	}
	(*source)(h).lockedCopy(g, j)
	g.job = j
	return j, nil
}

func newJob(req domain.MigrationRequest, link *Link) *migrationJob {
	return &migrationJob{
		req: req, link: link, peer: link.peer,
		changed: make(chan struct{}, 1), done: make(chan struct{}), over: make(chan struct{}), switched: make(chan struct{}),
	}
}

// lockedResumeJob resumes a migration that broke after the switch to post-copy.
func (h *migrations) lockedResumeJob(g *guest, link *Link) (*migrationJob, error) {
	switch old := g.job; {
	case old == nil || !old.broken || g.state.Reason != domain.ReasonPostcopyFailed:
		return nil, domain.ErrInvalidState
	case link.peer != old.peer:
		return nil, fmt.Errorf("the domain is elsewhere: %w", domain.ErrInvalid)
	case link.cut:
		return nil, errLinkCut
	default:
		j := newJob(old.req, link)
		j.copying, j.limit, j.before, j.prepared = old.copying, old.limit, old, true
		j.copying.at = h.clock.Now()
		j.copying.rate = h.lockedRate(j)
		g.job = j
		g.state.Reason = domain.ReasonPostcopy
		h.lockedEmit(g.state.Name, "PostcopyResumed")
		return j, nil
	}
}

// lockedElsewhere reports whether the guest runs, or may run, at the other end.
func (g *guest) lockedElsewhere() bool {
	return g.state.Status == domain.StatusPaused &&
		(g.state.Reason == domain.ReasonPostcopy || g.state.Reason == domain.ReasonPostcopyFailed)
}

// lockedCopied is the size of the disks to copy in bytes.
func (g *guest) lockedCopied(targets []string) (bytes uint64) {
	for _, d := range disksAt(g.def, targets) {
		bytes += g.lockedSize(aliasOf(d))
	}
	return bytes
}

// disksAt returns the disks with those targets.
func disksAt(def *libvirtxml.Domain, targets []string) (out []*libvirtxml.DomainDisk) {
	if def.Devices == nil {
		return nil
	}
	for i := range def.Devices.Disks {
		d := &def.Devices.Disks[i]
		if d.Target != nil && slices.Contains(targets, d.Target.Dev) {
			out = append(out, d)
		}
	}
	return out
}

func aliasOf(d *libvirtxml.DomainDisk) string {
	if d.Alias == nil {
		return ""
	}
	return d.Alias.Name
}

// MigrationProgress implements domain.Migrator.
func (h *migrations) MigrationProgress(ctx context.Context, name string) (domain.Progress, error) {
	var p domain.Progress
	err := h.call(ctx, "MigrationProgress", name, func() error {
		g, ok := h.guests[name]
		switch {
		case !ok:
			return fmt.Errorf("progress of %s: %w", name, domain.ErrNotFound)
		case g.job != nil:
			h.lockedSettle(g)
			p = g.job.copying.progress()
		default:
			p = g.last
		}
		return nil
	})
	return p, err
}

// AbortMigration implements domain.Migrator.
func (h *migrations) AbortMigration(ctx context.Context, name string) error {
	return h.call(ctx, "AbortMigration", name, func() error {
		g, ok := h.guests[name]
		if !ok {
			return fmt.Errorf("abort migration of %s: %w", name, domain.ErrNotFound)
		}
		if g.job != nil && !h.lockedAbort(g.job, domain.ErrMigrationAborted) {
			return fmt.Errorf("abort migration of %s: the domain runs at the destination: %w", name, domain.ErrInvalidState)
		}
		return nil
	})
}

// lockedAbort ends a migration unless the guest runs at the other end.
func (h *migrations) lockedAbort(j *migrationJob, why error) bool {
	if j.copying.postCopy {
		return false
	}
	j.stop(why)
	return true
}

// SwitchToPostCopy implements domain.PostCopier.
func (h *migrations) SwitchToPostCopy(ctx context.Context, name string) error {
	var j *migrationJob
	var l luggage
	err := h.onJob(ctx, "SwitchToPostCopy", name, func(g *guest) error {
		c := &g.job.copying
		if !g.job.req.PostCopy || !g.job.prepared || c.disks > 0 || c.done || c.postCopy {
			return domain.ErrInvalidState
		}
		select {
		case <-g.job.done:
			return domain.ErrInvalidState
		default:
		}
		c.toPostCopy()
		l = g.lockedPack(g.job)
		g.lockedLeave(domain.StatusPaused, domain.ReasonPostcopy)
		h.lockedEmit(name, "Postcopy")
		j = g.job
		return nil
	})
	if err != nil {
		return err
	}
	j.peer.arrive(j, l)
	close(j.switched)
	j.poke()
	return nil
}

// SetMaxDowntime implements domain.MigrationTuner.
func (h *migrations) SetMaxDowntime(ctx context.Context, name string, d time.Duration) error {
	return h.onJob(ctx, "SetMaxDowntime", name, func(g *guest) error {
		if d <= 0 || d > migrate.MaxDowntimeCeiling {
			return fmt.Errorf("downtime of %s: %w", d, domain.ErrInvalid)
		}
		g.job.copying.maxDowntime = d
		return nil
	})
}

// SetMigrationBandwidth implements domain.MigrationTuner.
func (h *migrations) SetMigrationBandwidth(ctx context.Context, name string, mib uint64) error {
	return h.onJob(ctx, "SetMigrationBandwidth", name, func(g *guest) error {
		g.job.limit = mib
		g.job.copying.rate = h.lockedRate(g.job)
		return nil
	})
}

// onJob changes a migration that is running.
func (h *migrations) onJob(ctx context.Context, call, name string, do func(*guest) error) error {
	return h.call(ctx, call, name, func() error {
		g, ok := h.guests[name]
		var err error
		switch {
		case !ok:
			err = domain.ErrNotFound
		case g.job == nil || g.job.broken:
			err = domain.ErrInvalidState
		default:
			h.lockedSettle(g)
			err = do(g)
		}
		if err != nil {
			return fmt.Errorf("%s of the migration of %s: %w", call, name, err)
		}
		return nil
	})
}
