// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package libvirt

import (
	"context"
	"errors"
	"fmt"
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
	ch := make(chan error, 1)
	go func() {
		ch <- d.onLane(op, req.Domain, func(c *virt.Connect) error {
			return withDomain(c, req.Domain, func(dom *virt.Domain) error {
				if req.MaxDowntime > 0 {
					if err := dom.MigrateSetMaxDowntime(uint64(req.MaxDowntime/time.Millisecond), 0); err != nil {
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
	}
	return d.cancel(ctx, req.Domain, ch)
}

// cancel aborts until the migration has returned.
func (d *Driver) cancel(ctx context.Context, name string, migrated <-chan error) error {
	tick := time.NewTicker(abortRetry)
	defer tick.Stop()
	for {
		// The caller's context has ended; this one only carries its values.
		_ = d.AbortMigration(context.WithoutCancel(ctx), name)
		select {
		case err := <-migrated:
			if err != nil && !errors.Is(err, domain.ErrMigrationAborted) && !errors.Is(err, domain.ErrDisconnected) {
				err = fmt.Errorf("%w: %w", domain.ErrMigrationAborted, err)
			}
			return err
		case <-tick.C:
		}
	}
}

// migration translates a request.
func migration(req domain.MigrationRequest) (*virt.DomainMigrateParameters, virt.DomainMigrateFlags, error) {
	if req.Domain == "" || req.DestinationURI == "" {
		return nil, 0, fmt.Errorf("migrate %q to %q: needs a domain and a destination: %w", req.Domain, req.DestinationURI, domain.ErrInvalid)
	}
	p := &virt.DomainMigrateParameters{}
	flags := virt.MIGRATE_LIVE | virt.MIGRATE_PEER2PEER | virt.MIGRATE_PERSIST_DEST
	if req.MigrateURI != "" {
		p.URISet, p.URI = true, req.MigrateURI
	}
	if req.Definition != nil {
		xml, err := req.Definition.Marshal()
		if err != nil {
			return nil, 0, fmt.Errorf("migrate %s: %w", req.Domain, err)
		}
		p.DestXMLSet, p.DestXML = true, xml
		p.PersistXMLSet, p.PersistXML = true, xml
	}
	if len(req.CopyDisks) > 0 {
		flags |= virt.MIGRATE_NON_SHARED_DISK
		p.MigrateDisksSet, p.MigrateDisks = true, req.CopyDisks
	}
	if req.BandwidthMiB > 0 {
		p.BandwidthSet, p.Bandwidth = true, req.BandwidthMiB
	}
	if req.Parallel > 1 {
		flags |= virt.MIGRATE_PARALLEL
		p.ParallelConnectionsSet, p.ParallelConnections = true, req.Parallel
	}
	for _, o := range []struct {
		on   bool
		flag virt.DomainMigrateFlags
	}{
		{req.Unsafe, virt.MIGRATE_UNSAFE},
		{req.AutoConverge, virt.MIGRATE_AUTO_CONVERGE},
		{req.PostCopy, virt.MIGRATE_POSTCOPY},
		{req.Paused, virt.MIGRATE_PAUSED},
	} {
		if o.on {
			flags |= o.flag
		}
	}
	return p, flags, nil
}

// MigrationProgress implements domain.Migrator.
func (d *Driver) MigrationProgress(ctx context.Context, name string) (domain.Progress, error) {
	return read(ctx, d, "get migration progress", name, func(c *virt.Connect) (p domain.Progress, err error) {
		err = withDomain(c, name, func(dom *virt.Domain) error {
			i, err := dom.GetJobStats(0)
			if code(err, virt.ERR_OPERATION_INVALID) { // does not run: nothing migrates
				i, err = &virt.DomainJobInfo{Type: virt.DOMAIN_JOB_NONE}, nil
			}
			if err != nil {
				return err
			}
			if i.Type == virt.DOMAIN_JOB_NONE || i.OperationSet && i.Operation != virt.DOMAIN_JOB_OPERATION_MIGRATION_OUT {
				return nil
			}
			p = domain.Progress{
				Active: true, Elapsed: time.Duration(i.TimeElapsed) * time.Millisecond,
				Total: i.DataTotal, Processed: i.DataProcessed, Remaining: i.DataRemaining,
				Iteration: i.MemIteration, Downtime: time.Duration(i.Downtime) * time.Millisecond,
				BytesPerSecond: i.MemBps,
			}
			st, reason, err := dom.GetState()
			p.PostCopy = st == virt.DOMAIN_PAUSED && reason == int(virt.DOMAIN_PAUSED_POSTCOPY)
			return err
		})
		return p, err
	})
}

// AbortMigration implements domain.Migrator.
func (d *Driver) AbortMigration(ctx context.Context, name string) error {
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

// SwitchToPostCopy implements domain.PostCopier.
func (d *Driver) SwitchToPostCopy(ctx context.Context, name string) error {
	_, err := read(ctx, d, "switch to post-copy", name, func(c *virt.Connect) (struct{}, error) {
		return struct{}{}, withDomain(c, name, func(dom *virt.Domain) error { return dom.MigrateStartPostCopy(0) })
	})
	return err
}
