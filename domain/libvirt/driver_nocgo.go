// SPDX-License-Identifier: Apache-2.0

//go:build !cgo

package libvirt

import (
	"context"

	"github.com/virtloom/virtloom/domain"
)

// Driver is not available in this build: there is none, since [Open] fails.
type Driver struct {
	domain.Hypervisor
	domain.Migrator
	domain.PostCopier
	domain.GuestAgent
	domain.StatsReader
	domain.Snapshotter
	domain.ConsoleOpener
	domain.MemoryHotplugger
	domain.CapabilitiesReader
}

// Open returns an error that explains how to build with libvirt.
func Open(_ context.Context, uri string, _ Options) (*Driver, error) {
	return nil, &Error{
		Op: "open " + uri, Message: "this binary was built without libvirt: build it with CGO_ENABLED=1 -tags libvirt_dlopen",
		Err: domain.ErrUnsupported,
	}
}

// Close does nothing.
func (d *Driver) Close() error { return nil }
