// SPDX-License-Identifier: Apache-2.0

// Package readonly makes clients of those who look only: what would write gets [Err].
package readonly

import (
	"context"
	"errors"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Err means that one who is to look only was about to write.
var Err = errors.New("an observer does not write")

// Source is what is looked at. Every client.Client is one.
type Source interface {
	client.Reader
	// Scheme, RESTMapper, GroupVersionKindFor and IsObjectNamespaced are those of client.Client.
	Scheme() *runtime.Scheme
	RESTMapper() meta.RESTMapper
	GroupVersionKindFor(obj runtime.Object) (schema.GroupVersionKind, error)
	IsObjectNamespaced(obj runtime.Object) (bool, error)
}

// Client is a client that reads from a Source, and neither writes nor knows subresources.
type Client struct{ Source }

var _ client.Client = Client{}

// Create is part of client.Writer.
func (Client) Create(context.Context, client.Object, ...client.CreateOption) error { return Err }

// Delete is part of client.Writer.
func (Client) Delete(context.Context, client.Object, ...client.DeleteOption) error { return Err }

// Update is part of client.Writer.
func (Client) Update(context.Context, client.Object, ...client.UpdateOption) error { return Err }

// Patch is part of client.Writer.
func (Client) Patch(context.Context, client.Object, client.Patch, ...client.PatchOption) error {
	return Err
}

// Apply is part of client.Writer.
func (Client) Apply(context.Context, runtime.ApplyConfiguration, ...client.ApplyOption) error {
	return Err
}

// DeleteAllOf is part of client.Writer.
func (Client) DeleteAllOf(context.Context, client.Object, ...client.DeleteAllOfOption) error {
	return Err
}

// Status is part of client.StatusClient.
func (Client) Status() client.SubResourceWriter { return part{} }

// SubResource is part of client.SubResourceClientConstructor.
func (Client) SubResource(string) client.SubResourceClient { return part{} }

// part is a client of a subresource.
type part struct{}

// Get is part of client.SubResourceReader.
func (part) Get(context.Context, client.Object, client.Object, ...client.SubResourceGetOption) error {
	return Err
}

// Create is part of client.SubResourceWriter.
func (part) Create(context.Context, client.Object, client.Object, ...client.SubResourceCreateOption) error {
	return Err
}

// Update is part of client.SubResourceWriter.
func (part) Update(context.Context, client.Object, ...client.SubResourceUpdateOption) error {
	return Err
}

// Patch is part of client.SubResourceWriter.
func (part) Patch(context.Context, client.Object, client.Patch, ...client.SubResourcePatchOption) error {
	return Err
}

// Apply is part of client.SubResourceWriter.
func (part) Apply(context.Context, runtime.ApplyConfiguration, ...client.SubResourceApplyOption) error {
	return Err
}
