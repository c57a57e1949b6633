// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package libvirt

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	virt "libvirt.org/go/libvirt"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/migrate"
)

// abortRetry is the pause between attempts to abort a migration whose job has
// not begun yet or is in a phase that cannot be aborted.
const abortRetry = 50 * time.Millisecond

// migrator implements domain.Migrator, domain.PostCopier, domain.MigrationTuner and domain.SocketMigrator.
type migrator struct{ *connection }

// Migrate implements domain.Migrator, peer to peer: the local daemon connects to the remote one. It
// has a connection of its own, and other operations on the domain do not wait for it; libvirt
// itself refuses conflicting ones.
func (d *migrator) Migrate(ctx context.Context, req domain.MigrationRequest) error {
	const op = "migrate"
	if ctx.Err() != nil {
		return ended(ctx, op, req.Domain)
	}
	params, flags, err := migration(req)
	if err != nil {
		return err
	}
	if req.PostCopy && req.Parallel > 1 {
		d.opts.Log.V(4).Info("Ignoring parallel connections with post-copy", "domain", req.Domain, "asked", req.Parallel)
	}
	aborted, release := d.migrations.begin(req.Domain)
	defer release()
	ch := make(chan error, 1)
	go func() {
		ch <- d.onOwnConnection(op, req.Domain, func(c *virt.Connect) error {
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

// cancel aborts until the migration has returned. A job that has not begun cannot be aborted yet,
// nor that of a guest that runs at the destination by post-copy, which is awaited.
func (d *migrator) cancel(ctx context.Context, name string, migrated <-chan error) error {
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

// cancelled returns the outcome of a migration that was to be aborted.
func (d *migrator) cancelled(ctx context.Context, name string, err error) error {
	if err == nil || errors.Is(err, domain.ErrMigrationAborted) || errors.Is(err, domain.ErrDisconnected) {
		return err
	}
	if abroad, unknown := d.abroad(ctx, name); unknown != nil || abroad {
		return err // it may run at the destination
	}
	return fmt.Errorf("%w: %w", domain.ErrMigrationAborted, err)
}

// abroad reports whether the guest runs at the destination by post-copy, with or without a
// connection to the rest of its memory here.
func (d *migrator) abroad(ctx context.Context, name string) (bool, error) {
	return read(ctx, d.connection, "get state", name, func(c *virt.Connect) (abroad bool, err error) {
		err = withDomain(c, name, func(dom *virt.Domain) error {
			st, reason, err := dom.GetState()
			abroad = inPostCopy(st, reason)
			return err
		})
		return abroad, err
	})
}

// inPostCopy reports that for a state of libvirt.
func inPostCopy(st virt.DomainState, reason int) bool {
	return st == virt.DOMAIN_PAUSED &&
		(reason == int(virt.DOMAIN_PAUSED_POSTCOPY) || reason == int(virt.DOMAIN_PAUSED_POSTCOPY_FAILED))
}

// AbortMigration implements domain.Migrator.
func (d *migrator) AbortMigration(ctx context.Context, name string) error {
	err := d.abort(ctx, name)
	if err == nil || !errors.Is(err, domain.ErrInvalidState) {
		d.migrations.abort(name) // also one that has not begun, or began again
		return err
	}
	abroad, unknown := d.abroad(ctx, name)
	if unknown != nil || abroad || !d.migrations.abort(name) {
		return err
	}
	return nil // cancel retries until the migration returns
}

// abort tries once.
func (d *migrator) abort(ctx context.Context, name string) error {
	_, err := read(ctx, d.connection, "abort migration", name, func(c *virt.Connect) (struct{}, error) {
		return struct{}{}, withDomain(c, name, func(dom *virt.Domain) error {
			err := dom.AbortJob()
			if !code(err, virt.ERR_OPERATION_INVALID) {
				return err
			}
			// Without a job the abort has succeeded; with one that cannot be aborted it has not.
			i, statsErr := dom.GetJobStats(0)
			if code(statsErr, virt.ERR_OPERATION_INVALID) || statsErr == nil && i.Type == virt.DOMAIN_JOB_NONE {
				return nil
			}
			return err
		})
	})
	return err
}

// migrations are the calls of Migrate by domain.
type migrations struct {
	mu      sync.Mutex
	running map[string]chan struct{} // closed to abort it
}

// begin records a migration. The channel is closed to abort it; release has to be called when it
// has ended.
func (m *migrations) begin(name string) (aborted <-chan struct{}, release func()) {
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

// abort reports whether there is one to abort.
func (m *migrations) abort(name string) bool {
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
func (d *migrator) SwitchToPostCopy(ctx context.Context, name string) error {
	return d.onMigration(ctx, "switch to post-copy", name, func(dom *virt.Domain) error { return dom.MigrateStartPostCopy(0) })
}

// SetMaxDowntime implements domain.MigrationTuner.
func (d *migrator) SetMaxDowntime(ctx context.Context, name string, to time.Duration) error {
	const op = "set the maximum downtime"
	if to <= 0 || to > migrate.MaxDowntimeCeiling {
		return fmt.Errorf("libvirt: %s %s: Invalid value: %s is not within 1 ms and %s: %w", op, name, to, migrate.MaxDowntimeCeiling, domain.ErrInvalid)
	}
	return d.onMigration(ctx, op, name, func(dom *virt.Domain) error { return dom.MigrateSetMaxDowntime(milliseconds(to), 0) })
}

// SetMigrationBandwidth implements domain.MigrationTuner, before the switch to post-copy and after
// it.
func (d *migrator) SetMigrationBandwidth(ctx context.Context, name string, mib uint64) error {
	return d.onMigration(ctx, "limit the bandwidth", name, func(dom *virt.Domain) error {
		if err := dom.MigrateSetMaxSpeed(orUnlimited(mib), 0); err != nil {
			return err
		}
		return dom.MigrateSetMaxSpeed(orUnlimited(mib), virt.MIGRATE_MAX_SPEED_POSTCOPY)
	})
}

// onMigration runs f if the domain is being migrated away.
func (d *migrator) onMigration(ctx context.Context, op, name string, f func(*virt.Domain) error) error {
	_, err := read(ctx, d.connection, op, name, func(c *virt.Connect) (struct{}, error) {
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
