// SPDX-License-Identifier: Apache-2.0

package domain

import (
	"context"
)

// CapabilitiesReader is the ability of a [Hypervisor] to describe the devices and features
// that its domains can have. Found by type assertion.
type CapabilitiesReader interface {
	// Capabilities asks the hypervisor.
	Capabilities(ctx context.Context) (Capabilities, error)
}

// Capabilities are a hypervisor's own descriptions, in XML; each field is one document.
type Capabilities struct {
	// Host describes the host's CPU and the machine types (libvirt: capabilities).
	Host string
	// Domain describes the default kind of domain (domainCapabilities): of the host's
	// architecture, with KVM if the host has it, and the default machine type.
	Domain string
	// CPU is the host-model CPU of such a domain with all of its features expanded (cpu);
	// empty if the hypervisor does not report it.
	CPU string
}
