// SPDX-License-Identifier: Apache-2.0

//go:build !cgo

package libvirt

import (
	"context"
	"fmt"

	"github.com/virtloom/virtloom/domain"
)

// Driver is not available in this build.
type Driver struct{ domain.Hypervisor }

// Open returns an error that tells how to build with libvirt.
func Open(_ context.Context, uri string, _ Options) (*Driver, error) {
	return nil, &Error{
		Op: "open " + uri, Message: "this binary was built without libvirt: build it with CGO_ENABLED=1 -tags libvirt_dlopen",
		Err: domain.ErrUnsupported,
	}
}

// Close does nothing.
func (d *Driver) Close() error { return nil }

func (d *Driver) missing() error {
	return fmt.Errorf("built without libvirt: %w", domain.ErrUnsupported)
}

// Migrate implements domain.Migrator.
func (d *Driver) Migrate(context.Context, domain.MigrationRequest) error { return d.missing() }

// MigrationProgress implements domain.Migrator.
func (d *Driver) MigrationProgress(context.Context, string) (domain.Progress, error) {
	return domain.Progress{}, d.missing()
}

// AbortMigration implements domain.Migrator.
func (d *Driver) AbortMigration(context.Context, string) error { return d.missing() }

// SwitchToPostCopy implements domain.PostCopier.
func (d *Driver) SwitchToPostCopy(context.Context, string) error { return d.missing() }
