// SPDX-License-Identifier: Apache-2.0

package expectationsctrl

import (
	"context"

	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const statusSubresource = "status"

// Status returns a writer of the status subresource whose writes are noted.
func (c *ownedClient) Status() client.SubResourceWriter { return c.SubResource(statusSubresource) }

// SubResource returns a client of a subresource. Writes to status are noted, others are not: what they change is not the
// object itself.
func (c *ownedClient) SubResource(name string) client.SubResourceClient {
	sub := c.Client.SubResource(name)
	if name != statusSubresource {
		return sub
	}
	return &ownedStatus{SubResourceClient: sub, c: c}
}

type ownedStatus struct {
	client.SubResourceClient
	c *ownedClient
}

// Update notes and sends a status update.
func (s *ownedStatus) Update(ctx context.Context, obj client.Object, opts ...client.SubResourceUpdateOption) error {
	options := (&client.SubResourceUpdateOptions{}).ApplyOptions(opts)
	if len(options.DryRun) > 0 || options.SubResourceBody != nil {
		return s.SubResourceClient.Update(ctx, obj, opts...)
	}
	return s.c.update(ctx, obj, func() error { return s.SubResourceClient.Update(ctx, obj, opts...) })
}

// Patch notes and sends a status patch.
func (s *ownedStatus) Patch(ctx context.Context, obj client.Object, patch client.Patch, opts ...client.SubResourcePatchOption) error {
	options := (&client.SubResourcePatchOptions{}).ApplyOptions(opts)
	if len(options.DryRun) > 0 || options.SubResourceBody != nil {
		return s.SubResourceClient.Patch(ctx, obj, patch, opts...)
	}
	return s.c.update(ctx, obj, func() error { return s.SubResourceClient.Patch(ctx, obj, patch, opts...) })
}

// Apply notes and sends a server-side apply of the status.
func (s *ownedStatus) Apply(ctx context.Context, obj runtime.ApplyConfiguration, opts ...client.SubResourceApplyOption) error {
	if len((&client.SubResourceApplyOptions{}).ApplyOpts(opts).DryRun) > 0 {
		return s.SubResourceClient.Apply(ctx, obj, opts...)
	}
	return s.c.apply(ctx, obj, func() error { return s.SubResourceClient.Apply(ctx, obj, opts...) })
}
