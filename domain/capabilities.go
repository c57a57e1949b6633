// SPDX-License-Identifier: Apache-2.0

package domain

import "context"

// CapabilitiesReader is the ability of a [Hypervisor] to describe what its guests can be
// given. Found by type assertion.
type CapabilitiesReader interface {
	// Capabilities asks the hypervisor.
	Capabilities(ctx context.Context) (Capabilities, error)
}

// Capabilities are a hypervisor's own descriptions, in XML: each is the text of one
// answer.
type Capabilities struct {
	// Host are the host's CPU and the machine types of guests (libvirt: capabilities).
	Host string
	// Domain is what a guest of the usual kind can have (domainCapabilities): of the
	// host's architecture, with KVM where there is KVM, and the machine type that guests
	// have by default.
	Domain string
	// CPU is the widest CPU of such a guest with all of its features listed (cpu); empty
	// where the hypervisor does not tell.
	CPU string
}
