// SPDX-License-Identifier: Apache-2.0

// Package readonly provides clients for read-only observers: every write returns [Err].
package readonly

import (
	"context"
	"errors"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Err means that an observer attempted a write.
var Err = errors.New("writes are forbidden for a read-only observer")

// Source is the source of reads. Every client.Client is one.
type Source interface {
	client.Reader
	// Scheme, RESTMapper, GroupVersionKindFor and IsObjectNamespaced have the semantics of client.Client.
	Scheme() *runtime.Scheme
	RESTMapper() meta.RESTMapper
	GroupVersionKindFor(obj runtime.Object) (schema.GroupVersionKind, error)
	IsObjectNamespaced(obj runtime.Object) (bool, error)
}

// Client reads from a Source; its writes and subresource clients return Err.
type Client struct{ Source }

var _ client.Client = Client{}

// Create implements client.Writer.
func (Client) Create(context.Context, client.Object, ...client.CreateOption) error { return Err }

// Delete implements client.Writer.
func (Client) Delete(context.Context, client.Object, ...client.DeleteOption) error { return Err }

// Update implements client.Writer.
func (Client) Update(context.Context, client.Object, ...client.UpdateOption) error { return Err }

// Patch implements client.Writer.
func (Client) Patch(context.Context, client.Object, client.Patch, ...client.PatchOption) error {
	return Err
}

// Apply implements client.Writer.
func (Client) Apply(context.Context, runtime.ApplyConfiguration, ...client.ApplyOption) error {
	return Err
}

// DeleteAllOf implements client.Writer.
func (Client) DeleteAllOf(context.Context, client.Object, ...client.DeleteAllOfOption) error {
	return Err
}

// Status implements client.StatusClient.
func (Client) Status() client.SubResourceWriter { return part{} }

// SubResource implements client.SubResourceClientConstructor.
func (Client) SubResource(string) client.SubResourceClient { return part{} }

// part is a client of a subresource.
type part struct{}

// Get implements client.SubResourceReader.
func (part) Get(context.Context, client.Object, client.Object, ...client.SubResourceGetOption) error {
	return Err
}

// Create implements client.SubResourceWriter.
func (part) Create(context.Context, client.Object, client.Object, ...client.SubResourceCreateOption) error {
	return Err
}

// Update implements client.SubResourceWriter.
func (part) Update(context.Context, client.Object, ...client.SubResourceUpdateOption) error {
	return Err
}

// Patch implements client.SubResourceWriter.
func (part) Patch(context.Context, client.Object, client.Patch, ...client.SubResourcePatchOption) error {
	return Err
}

// Apply implements client.SubResourceWriter.
func (part) Apply(context.Context, runtime.ApplyConfiguration, ...client.SubResourceApplyOption) error {
	return Err
}
