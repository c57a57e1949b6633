// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package libvirt

import (
	"context"
	"time"

	"github.com/virtloom/virtloom/domain"
	virt "libvirt.org/go/libvirt"
)

// MigrationProgress implements domain.Migrator. libvirt remembers the last migration of a domain,
// at either end, until the domain is undefined or another job ends.
func (d *migrator) MigrationProgress(ctx context.Context, name string) (domain.Progress, error) {
	return read(ctx, d.connection, "get migration progress", name, func(c *virt.Connect) (p domain.Progress, err error) {
		err = withDomain(c, name, func(dom *virt.Domain) error {
			i, err := dom.GetJobStats(0)
			if code(err, virt.ERR_OPERATION_INVALID) { // not running: nothing migrates
				i, err = &virt.DomainJobInfo{Type: virt.DOMAIN_JOB_NONE}, nil
			}
			if err != nil {
				return err
			}
			if !leaving(i) {
				p = lastMigration(dom)
				return nil
			}
			p = progress(i)
			st, reason, err := dom.GetState()
			p.Active, p.PostCopy = true, inPostCopy(st, reason)
			return err
		})
		return p, err
	})
}

// leaving reports whether a job migrates the domain away.
func leaving(i *virt.DomainJobInfo) bool {
	return i.Type != virt.DOMAIN_JOB_NONE && (!i.OperationSet || i.Operation == virt.DOMAIN_JOB_OPERATION_MIGRATION_OUT)
}

// lastMigration returns the outcome of the domain's last migration; the zero value if none is
// known.
func lastMigration(dom *virt.Domain) domain.Progress {
	i, err := dom.GetJobStats(virt.DOMAIN_JOB_STATS_COMPLETED | virt.DOMAIN_JOB_STATS_KEEP_COMPLETED)
	if err != nil || i.Type != virt.DOMAIN_JOB_COMPLETED || !i.OperationSet {
		return domain.Progress{}
	}
	switch i.Operation {
	case virt.DOMAIN_JOB_OPERATION_MIGRATION_OUT, virt.DOMAIN_JOB_OPERATION_MIGRATION_IN:
		return progress(i)
	}
	return domain.Progress{}
}

func progress(i *virt.DomainJobInfo) domain.Progress {
	return domain.Progress{
		Elapsed: time.Duration(i.TimeElapsed) * time.Millisecond,
		Total:   i.DataTotal, Processed: i.DataProcessed, Remaining: i.DataRemaining,
		Iteration: i.MemIteration, Downtime: time.Duration(i.Downtime) * time.Millisecond,
		BytesPerSecond: i.MemBps, DirtyBytesPerSecond: i.MemDirtyRate * i.MemPageSize,
		Throttle: i.AutoConvergeThrottle,
	}
}
