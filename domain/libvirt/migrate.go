// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package libvirt

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/virtloom/virtloom/domain"
	virt "libvirt.org/go/libvirt"
)

// abortRetry is the pause between attempts to abort a migration whose job has
// not begun yet or is in a phase that cannot be aborted.
const abortRetry = 50 * time.Millisecond

// Migrate implements domain.Migrator, peer to peer: the daemon here talks to the
// daemon there. It has a connection of its own, and other operations on the
// domain do not wait for it; libvirt itself refuses what does not fit.
func (d *Driver) Migrate(ctx context.Context, req domain.MigrationRequest) error {
	const op = "migrate"
	if ctx.Err() != nil {
		return ended(ctx, op, req.Domain)
	}
	params, flags, err := migration(req)
	if err != nil {
		return err
	}
	if req.PostCopy && req.Parallel > 1 {
		d.opts.Log.V(1).Info("post-copy goes over one connection", "domain", req.Domain, "asked", req.Parallel)
	}
	aborted, release := d.moves.begin(req.Domain)
	defer release()
	ch := make(chan error, 1)
	go func() {
		ch <- d.onLane(op, req.Domain, func(c *virt.Connect) error {
			if err := fit(c, req, params); err != nil {
				return err
			}
			return withDomain(c, req.Domain, func(dom *virt.Domain) error {
				if req.MaxDowntime > 0 && !req.Resume {
					if err := dom.MigrateSetMaxDowntime(milliseconds(req.MaxDowntime), 0); err != nil {
						return translate("set the maximum downtime", req.Domain, err)
					}
				}
				return dom.MigrateToURI3(req.DestinationURI, params, flags)
			})
		})
	}()
	select {
	case err = <-ch:
		return err
	case <-ctx.Done():
	case <-aborted:
	}
	return d.cancel(ctx, req.Domain, ch)
}

// cancel aborts until the migration has returned. A job that has not begun cannot be
// aborted yet, nor one of a guest that runs at the destination by post-copy, which is
// waited for.
func (d *Driver) cancel(ctx context.Context, name string, migrated <-chan error) error {
	// The caller's context has ended; this one only carries its values.
	ctx = context.WithoutCancel(ctx)
	tick := time.NewTicker(abortRetry)
	defer tick.Stop()
	for {
		if abroad, err := d.abroad(ctx, name); err == nil && !abroad {
			_ = d.abort(ctx, name)
		}
		select {
		case err := <-migrated:
			return d.cancelled(ctx, name, err)
		case <-tick.C:
		}
	}
}

// cancelled is how a migration ended that was to be aborted.
func (d *Driver) cancelled(ctx context.Context, name string, err error) error {
	if err == nil || errors.Is(err, domain.ErrMigrationAborted) || errors.Is(err, domain.ErrDisconnected) {
		return err
	}
	if abroad, unknown := d.abroad(ctx, name); unknown != nil || abroad {
		return err // the guest may run at the destination
	}
	return fmt.Errorf("%w: %w", domain.ErrMigrationAborted, err)
}

// abroad tells whether the guest runs at the destination by post-copy, with or without
// a connection to the rest of its memory here.
func (d *Driver) abroad(ctx context.Context, name string) (bool, error) {
	return read(ctx, d, "get state", name, func(c *virt.Connect) (abroad bool, err error) {
		err = withDomain(c, name, func(dom *virt.Domain) error {
			st, reason, err := dom.GetState()
			abroad = inPostCopy(st, reason)
			return err
		})
		return abroad, err
	})
}

// inPostCopy tells it from libvirt's state.
func inPostCopy(st virt.DomainState, reason int) bool {
	return st == virt.DOMAIN_PAUSED &&
		(reason == int(virt.DOMAIN_PAUSED_POSTCOPY) || reason == int(virt.DOMAIN_PAUSED_POSTCOPY_FAILED))
}

// AbortMigration implements domain.Migrator.
func (d *Driver) AbortMigration(ctx context.Context, name string) error {
	err := d.abort(ctx, name)
	if err == nil || !errors.Is(err, domain.ErrInvalidState) {
		d.moves.abort(name) // one that has not begun, or began again, is aborted too
		return err
	}
	abroad, unknown := d.abroad(ctx, name)
	if unknown != nil || abroad || !d.moves.abort(name) {
		return err
	}
	return nil // whoever waits for the migration goes on trying
}

// abort asks once.
func (d *Driver) abort(ctx context.Context, name string) error {
	_, err := read(ctx, d, "abort migration", name, func(c *virt.Connect) (struct{}, error) {
		return struct{}{}, withDomain(c, name, func(dom *virt.Domain) error {
			err := dom.AbortJob()
			if !code(err, virt.ERR_OPERATION_INVALID) {
				return err
			}
			// Nothing to abort is what was wanted; a job that cannot be
			// aborted is not.
			i, statsErr := dom.GetJobStats(0)
			if code(statsErr, virt.ERR_OPERATION_INVALID) || statsErr == nil && i.Type == virt.DOMAIN_JOB_NONE {
				return nil
			}
			return err
		})
	})
	return err
}

// moves are migrations by domain.
type moves struct {
	mu      sync.Mutex
	running map[string]chan struct{} // closed when it shall be aborted
}

// begin notes a migration. What it returns is closed when it shall be aborted; release
// has to be called when it has ended.
func (m *moves) begin(name string) (aborted <-chan struct{}, release func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.running == nil {
		m.running = map[string]chan struct{}{}
	}
	if m.running[name] != nil { // libvirt refuses this one
		return nil, func() {}
	}
	ch := make(chan struct{})
	m.running[name] = ch
	return ch, func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		delete(m.running, name)
	}
}

// abort tells whether there is one to abort.
func (m *moves) abort(name string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	ch := m.running[name]
	if ch == nil {
		return false
	}
	select {
	case <-ch:
	default:
		close(ch)
	}
	return true
}

// SwitchToPostCopy implements domain.PostCopier.
func (d *Driver) SwitchToPostCopy(ctx context.Context, name string) error {
	return d.onMigration(ctx, "switch to post-copy", name, func(dom *virt.Domain) error { return dom.MigrateStartPostCopy(0) })
}

// SetMaxDowntime implements domain.MigrationTuner.
func (d *Driver) SetMaxDowntime(ctx context.Context, name string, to time.Duration) error {
	const op = "set the maximum downtime"
	if to <= 0 || to > domain.MaxDowntimeCeiling {
		return fmt.Errorf("libvirt: %s %s: %s is not within 1 ms and %s: %w", op, name, to, domain.MaxDowntimeCeiling, domain.ErrInvalid)
	}
	return d.onMigration(ctx, op, name, func(dom *virt.Domain) error { return dom.MigrateSetMaxDowntime(milliseconds(to), 0) })
}

// SetMigrationBandwidth implements domain.MigrationTuner, before the switch to post-copy
// and after it.
func (d *Driver) SetMigrationBandwidth(ctx context.Context, name string, mib uint64) error {
	return d.onMigration(ctx, "limit the bandwidth", name, func(dom *virt.Domain) error {
		if err := dom.MigrateSetMaxSpeed(orUnlimited(mib), 0); err != nil {
			return err
		}
		return dom.MigrateSetMaxSpeed(orUnlimited(mib), virt.MIGRATE_MAX_SPEED_POSTCOPY)
	})
}

// onMigration runs f if the domain is being migrated away.
func (d *Driver) onMigration(ctx context.Context, op, name string, f func(*virt.Domain) error) error {
	_, err := read(ctx, d, op, name, func(c *virt.Connect) (struct{}, error) {
		return struct{}{}, withDomain(c, name, func(dom *virt.Domain) error {
			i, err := dom.GetJobStats(0)
			if code(err, virt.ERR_OPERATION_INVALID) || err == nil && !leaving(i) {
				return &Error{Op: op, Domain: name, Code: int(virt.ERR_OPERATION_INVALID), Message: "no migration is running", Err: domain.ErrInvalidState}
			}
			if err != nil {
				return err
			}
			return f(dom)
		})
	})
	return err
}
