// SPDX-License-Identifier: Apache-2.0

package memory

import (
	"context"
	"fmt"

	"github.com/virtloom/virtloom/domain"
)

// SetCapabilities sets the answer of Capabilities.
func (h *Hypervisor) SetCapabilities(c domain.Capabilities) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.capabilities = c
}

// Capabilities implements domain.CapabilitiesReader. A hypervisor in memory has no CPU:
// [domain.ErrUnsupported] until SetCapabilities sets an answer.
func (h *Hypervisor) Capabilities(ctx context.Context) (domain.Capabilities, error) {
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
