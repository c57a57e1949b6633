// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"

	"github.com/go-logr/logr"

	"github.com/virtloom/virtloom/domain/network/dhcp"
)

// serveDHCP gives the guest the address that the agent of the node has prepared in the network
// namespace of this Pod, until ctx ends.
func serveDHCP(ctx context.Context, log logr.Logger) {
	dhcp.Serve(ctx, dhcp.Options{Log: log.WithName("dhcp")})
}
