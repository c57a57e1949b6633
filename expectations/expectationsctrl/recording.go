// SPDX-License-Identifier: Apache-2.0

package expectationsctrl

import (
	"context"
	"errors"
	"fmt"
	"reflect"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/virtloom/virtloom/expectations"
)

// ErrUntracked is returned, before anything is sent, for a write that cannot be expected: one whose name the server
// chooses, a deletion of an object without UID, or a deletion of a collection.
var ErrUntracked = errors.New("write cannot be tracked")

// RecordingClient makes clients whose writes are noted in a Tracker. It is safe for concurrent use.
type RecordingClient struct {
	client  client.Client
	tracker *expectations.Tracker
	cache   client.Reader
}

// NewRecordingClient returns a RecordingClient that writes through c. cache is the cache whose events the tracker
// observes; it is read after writes that may have changed nothing, for which no event would come. It may be nil: such
// writes then stay expected until a live read.
func NewRecordingClient(c client.Client, t *expectations.Tracker, cache client.Reader) *RecordingClient {
	return &RecordingClient{client: c, tracker: t, cache: cache}
}

// OwnerOf returns the owner that an object is.
func OwnerOf(obj client.Object) expectations.Owner {
	return expectations.Owner{Key: client.ObjectKeyFromObject(obj), UID: obj.GetUID()}
}

// For returns a client for writes on behalf of owner. Its reads are those of the wrapped client. Every write is noted
// before it is sent; it stays expected when the outcome is unknown and is taken back when the server refuses it.
//
// Create needs a name, Delete an object with UID, which is made a precondition. DeleteAllOf is refused. A creation that
// finds the object there stays expected: the cache has yet to show it. Dry runs are not noted, nor are writes to
// subresources other than status.
func (r *RecordingClient) For(owner expectations.Owner) client.Client {
	return &ownedClient{Client: r.client, r: r, owner: owner}
}

type ownedClient struct {
	client.Client
	r     *RecordingClient
	owner expectations.Owner
}

func (c *ownedClient) ref(obj client.Object) (expectations.Ref, error) {
	gvk, err := c.GroupVersionKindFor(obj)
	if err != nil {
		return expectations.Ref{}, fmt.Errorf("note write of %T: %w", obj, err)
	}
	return expectations.Ref{Kind: gvk.GroupKind(), Namespace: obj.GetNamespace(), Name: obj.GetName()}, nil
}

// Create notes and sends a creation.
func (c *ownedClient) Create(ctx context.Context, obj client.Object, opts ...client.CreateOption) error {
	if len((&client.CreateOptions{}).ApplyOptions(opts).DryRun) > 0 {
		return c.Client.Create(ctx, obj, opts...)
	}
	ref, err := c.ref(obj)
	if err != nil {
		return err
	}
	if ref.Name == "" {
		return fmt.Errorf("create %s with generated name: %w", ref.Kind, ErrUntracked)
	}
	tok := c.r.tracker.ExpectCreate(c.owner, ref)
	err = c.Client.Create(ctx, obj, opts...)
	c.settle(ctx, write{verb: expectations.Create, token: tok, ref: ref, obj: obj}, err)
	return err
}

// Update notes and sends an update.
func (c *ownedClient) Update(ctx context.Context, obj client.Object, opts ...client.UpdateOption) error {
	if len((&client.UpdateOptions{}).ApplyOptions(opts).DryRun) > 0 {
		return c.Client.Update(ctx, obj, opts...)
	}
	return c.update(ctx, obj, func() error { return c.Client.Update(ctx, obj, opts...) })
}

// Patch notes and sends a patch.
func (c *ownedClient) Patch(ctx context.Context, obj client.Object, patch client.Patch, opts ...client.PatchOption) error {
	if len((&client.PatchOptions{}).ApplyOptions(opts).DryRun) > 0 {
		return c.Client.Patch(ctx, obj, patch, opts...)
	}
	return c.update(ctx, obj, func() error { return c.Client.Patch(ctx, obj, patch, opts...) })
}

func (c *ownedClient) update(ctx context.Context, obj client.Object, send func() error) error {
	ref, err := c.ref(obj)
	if err != nil {
		return err
	}
	tok := c.r.tracker.ExpectUpdate(c.owner, ref, obj.GetResourceVersion(), "")
	err = send()
	c.settle(ctx, write{verb: expectations.Update, token: tok, ref: ref, obj: obj}, err)
	return err
}

// Apply notes and sends a server-side apply. It may create the object.
func (c *ownedClient) Apply(ctx context.Context, obj runtime.ApplyConfiguration, opts ...client.ApplyOption) error {
	if len((&client.ApplyOptions{}).ApplyOptions(opts).DryRun) > 0 {
		return c.Client.Apply(ctx, obj, opts...)
	}
	return c.apply(ctx, obj, func() error { return c.Client.Apply(ctx, obj, opts...) })
}

func (c *ownedClient) apply(ctx context.Context, obj runtime.ApplyConfiguration, send func() error) error {
	before, err := metadataOf(obj)
	if err != nil {
		return err
	}
	gv, err := schema.ParseGroupVersion(before.APIVersion)
	if err != nil || before.Kind == "" || before.Name == "" {
		return fmt.Errorf("apply %T without apiVersion, kind or name: %w", obj, errors.Join(ErrUntracked, err))
	}
	ref := expectations.Ref{
		Kind: schema.GroupKind{Group: gv.Group, Kind: before.Kind}, Namespace: before.Namespace, Name: before.Name,
	}
	tok := c.r.tracker.ExpectUpdate(c.owner, ref, before.ResourceVersion, "")
	err = send()
	w := write{verb: expectations.Update, token: tok, ref: ref, applied: true}
	if after, failed := metadataOf(obj); err == nil && failed == nil {
		w.obj = after
	}
	c.settle(ctx, w, err)
	return err
}

// Delete notes and sends the deletion of exactly the object that obj is.
func (c *ownedClient) Delete(ctx context.Context, obj client.Object, opts ...client.DeleteOption) error {
	options := (&client.DeleteOptions{}).ApplyOptions(opts)
	if len(options.DryRun) > 0 {
		return c.Client.Delete(ctx, obj, opts...)
	}
	ref, err := c.ref(obj)
	if err != nil {
		return err
	}
	uid := obj.GetUID()
	if p := options.Preconditions; p != nil && p.UID != nil {
		uid = *p.UID
	}
	if uid == "" {
		return fmt.Errorf("delete %s without UID: %w", ref, ErrUntracked)
	}
	if options.Preconditions == nil || options.Preconditions.UID == nil {
		p := client.Preconditions{UID: &uid}
		if options.Preconditions != nil {
			p.ResourceVersion = options.Preconditions.ResourceVersion
		}
		opts = append(opts[:len(opts):len(opts)], p)
	}
	tok := c.r.tracker.ExpectDelete(c.owner, ref, uid, obj.GetResourceVersion())
	err = c.Client.Delete(ctx, obj, opts...)
	c.settle(ctx, write{verb: expectations.Delete, token: tok, ref: ref}, err)
	return err
}

// DeleteAllOf is refused: what it deletes is known to the server only.
func (c *ownedClient) DeleteAllOf(_ context.Context, obj client.Object, _ ...client.DeleteAllOfOption) error {
	return fmt.Errorf("delete all of %T: %w", obj, ErrUntracked)
}

// write is one noted write and the object that its answer was read into; nil for deletions.
type write struct {
	verb  expectations.Verb
	token expectations.Token
	ref   expectations.Ref
	obj   client.Object
	// applied: obj is only the metadata of an apply configuration.
	applied bool
}

// settle tells the tracker what came of a write.
func (c *ownedClient) settle(ctx context.Context, w write, err error) {
	switch expectations.Classify(w.verb, err) {
	case expectations.Refused:
		c.r.tracker.Cancel(w.token)
	case expectations.Exists:
		if !c.r.tracker.Exists(w.token) {
			c.catchUp(ctx, w)
		}
	case expectations.Accepted:
		var answer metav1.Object
		if w.obj != nil {
			answer = w.obj
		}
		if !c.r.tracker.Confirm(w.token, answer) && w.verb == expectations.Update && w.obj != nil {
			c.catchUp(ctx, w)
		}
	case expectations.Ambiguous:
	}
}

// catchUp looks whether the cache shows the write already, for a write after which no event may come: one that changed
// nothing, or a creation of what is there. A miss proves nothing and changes nothing.
func (c *ownedClient) catchUp(ctx context.Context, w write) {
	if c.r.cache == nil || w.obj == nil {
		return
	}
	seen, ok := c.emptyLike(w)
	if !ok {
		return
	}
	key := client.ObjectKey{Namespace: w.ref.Namespace, Name: w.ref.Name}
	if c.r.cache.Get(ctx, key, seen) == nil {
		c.r.tracker.Seen(w.token, seen)
	}
}

// emptyLike returns an object of the type under which the cache holds the one written.
func (c *ownedClient) emptyLike(w write) (client.Object, bool) {
	gvk := w.obj.GetObjectKind().GroupVersionKind()
	if w.applied {
		empty, err := c.Scheme().New(gvk)
		if err != nil {
			return nil, false
		}
		obj, ok := empty.(client.Object)
		return obj, ok
	}
	obj, ok := reflect.New(reflect.TypeOf(w.obj).Elem()).Interface().(client.Object)
	if ok {
		obj.GetObjectKind().SetGroupVersionKind(gvk)
	}
	return obj, ok
}

// metadataOf reads the object metadata of an apply configuration.
func metadataOf(obj runtime.ApplyConfiguration) (*metav1.PartialObjectMetadata, error) {
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(obj)
	if err != nil {
		return nil, fmt.Errorf("read metadata of %T: %w", obj, err)
	}
	var m metav1.PartialObjectMetadata
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(content, &m); err != nil {
		return nil, fmt.Errorf("read metadata of %T: %w", obj, err)
	}
	return &m, nil
}
