// SPDX-License-Identifier: Apache-2.0

package expectationsctrl

import (
	"context"
	"errors"
	"fmt"
	"math/big"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/virtloom/virtloom/expectations"
)

// ErrUntracked is returned, before anything is sent, for a write that cannot be tracked: one whose name the server
// chooses, a deletion of an object without UID, or a deletion of a collection.
var ErrUntracked = errors.New("write cannot be tracked")

// For returns a client for writes on behalf of owner. Its reads are those of the wrapped client. Every write is noted
// before it is sent; it stays expected when the outcome is unknown and is canceled when the server refuses it.
//
// Create needs a name, Delete an object with UID, which is made a precondition. DeleteAllOf is refused. A creation that
// finds an existing object awaits that object. Dry runs are not noted, nor are writes to a subresource that is not the
// object itself, such as scale or eviction.
//
// Evidence seen by the time a call returns does not wake the owner, as it is running: a pass that writes nothing new is
// not repeated.
func (g *Gate) For(owner expectations.Owner) client.Client {
	return &ownedClient{Client: g.client, gate: g, owner: owner}
}

type ownedClient struct {
	client.Client
	gate  *Gate
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
	tok := c.gate.tracker.ExpectCreate(c.owner, ref)
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
	tok := c.gate.tracker.ExpectUpdate(c.owner, ref, obj.GetResourceVersion(), "")
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
	tok := c.gate.tracker.ExpectUpdate(c.owner, ref, before.ResourceVersion, "")
	err = send()
	w := write{verb: expectations.Update, token: tok, ref: ref}
	if after, failed := metadataOf(obj); failed == nil {
		w.obj = after
	}
	c.settle(ctx, w, err)
	return err
}

// Delete notes and sends the deletion of exactly the object with the UID of obj.
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
	tok := c.gate.tracker.ExpectDelete(c.owner, ref, uid, obj.GetResourceVersion())
	err = c.Client.Delete(ctx, obj, opts...)
	c.settle(ctx, write{verb: expectations.Delete, token: tok, ref: ref, obj: obj, uid: uid}, err)
	return err
}

// DeleteAllOf is refused: only the server knows which objects it deletes.
func (c *ownedClient) DeleteAllOf(_ context.Context, obj client.Object, _ ...client.DeleteAllOfOption) error {
	return fmt.Errorf("delete all of %T: %w", obj, ErrUntracked)
}

// write is one noted write and the object as the server answered it, or as it was sent if the answer has none; its
// metadata alone is used.
type write struct {
	verb  expectations.Verb
	token expectations.Token
	ref   expectations.Ref
	obj   metav1.Object
	uid   types.UID // of the object to delete
}

// settle reports the outcome of a write to the tracker.
func (c *ownedClient) settle(ctx context.Context, w write, err error) {
	switch expectations.Classify(w.verb, err) {
	case expectations.Refused:
		c.gate.tracker.Cancel(w.token)
	case expectations.Exists:
		c.exists(ctx, w)
	case expectations.Accepted:
		c.accepted(ctx, w)
	case expectations.Ambiguous:
		if w.verb == expectations.Create {
			c.gate.doubts.add(c.owner, w.token, c.gate.now())
		}
	}
}

// exists handles a creation that was refused because of an existing object: the cache has to show that object, which a
// live read identifies. If it is gone by now there is nothing to wait for.
func (c *ownedClient) exists(ctx context.Context, w write) {
	if c.gate.tracker.Exists(w.token) {
		return
	}
	live, err := c.gate.readLive(ctx, w.ref)
	switch {
	case err != nil: // any object of that name is evidence, or a live read after the TTL
		c.catchUp(ctx, w)
	case live == nil:
		c.gate.tracker.Cancel(w.token)
	default:
		w.obj = live
		c.accepted(ctx, w)
	}
}

func (c *ownedClient) accepted(ctx context.Context, w write) {
	answer := w.obj
	switch {
	case w.verb == expectations.Delete:
		answer = nil
	case w.verb == expectations.Update && answer != nil && ended(answer):
		answer = &metav1.ObjectMeta{UID: answer.GetUID(), ResourceVersion: nextVersion(answer.GetResourceVersion())}
	}
	if !c.gate.tracker.Confirm(w.token, answer) {
		c.catchUp(ctx, w)
	}
}

// ended reports whether the server removed the object with the update of this answer: no finalizer holds it any more. The
// answer has the last version of the object. The removal that the cache has yet to show is newer.
func ended(answer metav1.Object) bool {
	grace := answer.GetDeletionGracePeriodSeconds()
	return answer.GetDeletionTimestamp() != nil && len(answer.GetFinalizers()) == 0 && (grace == nil || *grace == 0)
}

// nextVersion returns the next version, or the version itself if it is not a number.
func nextVersion(version string) string {
	n, ok := new(big.Int).SetString(version, 10)
	if !ok {
		return version
	}
	return n.Add(n, big.NewInt(1)).String()
}

// catchUp checks whether the cache already shows the write, for a write after which no event may come: one that changed
// nothing, or whose event came before it was noted. A miss proves nothing, unless the cache never shows such an object.
func (c *ownedClient) catchUp(ctx context.Context, w write) {
	seen := c.gate.readCached(ctx, w.ref)
	switch {
	case seen != nil && w.verb == expectations.Delete && seen.GetUID() == w.uid && seen.GetDeletionTimestamp() != nil:
		c.deletedAgain(ctx, w)
	case seen != nil:
		c.gate.tracker.Seen(w.token, seen)
	// Without a version the object is a stub: it has a UID, but not the fields that a selector needs.
	case w.obj != nil && w.obj.GetResourceVersion() != "" && c.gate.hidden(w.ref.Kind, w.obj):
		c.gate.tracker.Cancel(w.token)
	}
}

// deletedAgain handles the deletion of an object that the cache shows terminating. It changed the object, by a shorter
// grace period, or it did not: a live read returns the version to wait for. If the object is gone by now, or cannot be
// read, the wait for its removal remains.
//
// The wait for that version is noted before the read, and the cache is read once more after it: the object may be
// removed at any moment, and an event that arrives while no write waits for it is lost.
func (c *ownedClient) deletedAgain(ctx context.Context, w write) {
	tok := c.gate.tracker.ExpectUpdate(c.owner, w.ref, "", "")
	live, err := c.gate.readLive(ctx, w.ref)
	if err != nil || live == nil || live.GetUID() != w.uid {
		c.gate.tracker.Cancel(tok)
		return
	}
	c.gate.tracker.Cancel(w.token)
	if c.gate.tracker.Confirm(tok, live) {
		return
	}
	if seen := c.gate.readCached(ctx, w.ref); seen != nil {
		c.gate.tracker.Seen(tok, seen)
	}
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
