// SPDX-License-Identifier: Apache-2.0

package expectationsctrl

import (
	"context"

	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// scaleSubresource is the subresource whose representation is of another kind than the object.
const scaleSubresource = "scale"

// Status returns a writer of the status subresource whose writes are noted.
func (c *ownedClient) Status() client.SubResourceWriter { return c.SubResource("status") }

// SubResource returns a client of a subresource. Updates, patches and applies that are answered with the object are noted.
// Creations, such as an eviction, are not, nor are writes with a body of their own: their answer does not contain the
// version to wait for.
func (c *ownedClient) SubResource(name string) client.SubResourceClient {
	sub := c.Client.SubResource(name)
	if name == scaleSubresource {
		return sub
	}
	return &ownedSubresource{SubResourceClient: sub, c: c}
}

type ownedSubresource struct {
	client.SubResourceClient
	c *ownedClient
}

// Update notes and sends an update.
func (s *ownedSubresource) Update(ctx context.Context, obj client.Object, opts ...client.SubResourceUpdateOption) error {
	options := (&client.SubResourceUpdateOptions{}).ApplyOptions(opts)
	if len(options.DryRun) > 0 || options.SubResourceBody != nil {
		return s.SubResourceClient.Update(ctx, obj, opts...)
	}
	return s.c.update(ctx, obj, func() error { return s.SubResourceClient.Update(ctx, obj, opts...) })
}

// Patch notes and sends a patch.
func (s *ownedSubresource) Patch(ctx context.Context, obj client.Object, patch client.Patch, opts ...client.SubResourcePatchOption) error {
	options := (&client.SubResourcePatchOptions{}).ApplyOptions(opts)
	if len(options.DryRun) > 0 || options.SubResourceBody != nil {
		return s.SubResourceClient.Patch(ctx, obj, patch, opts...)
	}
	return s.c.update(ctx, obj, func() error { return s.SubResourceClient.Patch(ctx, obj, patch, opts...) })
}

// Apply notes and sends a server-side apply.
func (s *ownedSubresource) Apply(ctx context.Context, obj runtime.ApplyConfiguration, opts ...client.SubResourceApplyOption) error {
	if len((&client.SubResourceApplyOptions{}).ApplyOpts(opts).DryRun) > 0 {
		return s.SubResourceClient.Apply(ctx, obj, opts...)
	}
	return s.c.apply(ctx, obj, func() error { return s.SubResourceClient.Apply(ctx, obj, opts...) })
}
