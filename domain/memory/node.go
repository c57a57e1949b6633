// SPDX-License-Identifier: Apache-2.0

package memory

import (
	"context"
	"fmt"
	"slices"

	"github.com/virtloom/virtloom/domain"
)

// node is the node of the hypervisor: what it supports, and its files.
type node struct{ *state }

// SetHost replaces the answer of Host.
func (h *node) SetHost(host domain.Host) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.host = host.Clone()
}

// Host implements domain.Hypervisor.
func (h *node) Host(ctx context.Context) (domain.Host, error) {
	var out domain.Host
	err := h.call(ctx, "Host", "", func() error {
		out = h.host.Clone()
		return nil
	})
	return out, err
}

// SetCapabilities sets the answer of Capabilities.
func (h *node) SetCapabilities(c domain.Capabilities) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.capabilities = c
}

// Capabilities implements domain.CapabilitiesReader. A hypervisor in memory has no CPU:
// [domain.ErrUnsupported] until SetCapabilities sets an answer.
func (h *node) Capabilities(ctx context.Context) (domain.Capabilities, error) {
	var out domain.Capabilities
	err := h.call(ctx, "Capabilities", "", func() error {
		if h.capabilities == (domain.Capabilities{}) {
			return fmt.Errorf("capabilities, without SetCapabilities: %w", domain.ErrUnsupported)
		}
		out = h.capabilities
		return nil
	})
	return out, err
}

// MemoryModel implements domain.MemoryHotplugger.
func (h *node) MemoryModel(ctx context.Context, arch string) (domain.MemoryModel, error) {
	model := domain.VirtioMem
	err := h.call(ctx, "MemoryModel", "", func() error {
		if !slices.Contains([]string{"x86_64", "aarch64"}, arch) {
			return fmt.Errorf("memory devices for domains of %s: %w", arch, domain.ErrUnsupported)
		}
		return nil
	})
	if err != nil {
		return "", err
	}
	return model, nil
}

// PutFile sets the size of a file or block device of the node, to which the disk of an arriving
// guest may have to be copied. Without it there is one of the right size at every path.
func (h *node) PutFile(path string, bytes uint64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.files[path] = bytes
}

// SetSockets sets the answer of MigrationSockets. The caller makes the folder.
func (h *node) SetSockets(s domain.Sockets) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.sockets = s
}

// MigrationSockets implements domain.SocketMigrator. A hypervisor in memory has none until
// [Hypervisor.SetSockets]: [domain.ErrUnsupported].
func (h *node) MigrationSockets(ctx context.Context, name string) (domain.Sockets, error) {
	var out domain.Sockets
	err := h.call(ctx, "MigrationSockets", name, func() error {
		if h.sockets == (domain.Sockets{}) {
			return fmt.Errorf("sockets for migrations of %s, without SetSockets: %w", name, domain.ErrUnsupported)
		}
		out = h.sockets
		return nil
	})
	return out, err
}
