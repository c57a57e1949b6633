// SPDX-License-Identifier: Apache-2.0

package dump

import (
	"context"
	"errors"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	v1 "kubevirt.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/virtloom/virtloom/template"
	"github.com/virtloom/virtloom/template/templatectrl"
)

// page is the page size of lists.
const page = 500

// Dump is a snapshot of a cluster. A dump that was taken from a cluster is not safe for
// concurrent use.
type Dump struct {
	// TakenAt is the time at which Take began.
	TakenAt time.Time

	scheme  *runtime.Scheme
	shelves map[schema.GroupVersionKind]*shelf
	// live is the cluster; nil for a dump from a file.
	live client.Reader
}

func newDump(at time.Time, scheme *runtime.Scheme) *Dump {
	return &Dump{TakenAt: at, scheme: scheme, shelves: map[schema.GroupVersionKind]*shelf{}}
}

// Cluster is the source of a dump.
type Cluster struct {
	// Client reads from the API server. Its scheme must have all kinds to be read.
	Client client.Client
	// Now returns the time.
	Now time.Time
}

// Take reads all objects of the listed kinds from a cluster. A kind that it does not serve is left
// out; one that may not be listed is recorded, and reading it from the dump is an error.
func Take(ctx context.Context, c Cluster) (*Dump, error) {
	d := newDump(c.Now, c.Client.Scheme())
	d.live = c.Client
	for _, s := range sources {
		_, err := c.Client.RESTMapper().RESTMapping(s.GroupKind(), s.Version)
		switch {
		case meta.IsNoMatchError(err):
			continue
		case err != nil:
			return nil, fmt.Errorf("dump: look for %s: %w", s.Kind, err)
		}
		if err := d.take(ctx, s); err != nil {
			return nil, fmt.Errorf("dump: list objects of kind %s: %w", s.Kind, err)
		}
	}
	return d, nil
}

// take lists the objects of one kind.
func (d *Dump) take(ctx context.Context, of source) error {
	k := kindOf(of.GroupVersionKind)
	k.Global = of.global
	s := newShelf(k)
	d.shelves[of.GroupVersionKind] = s
	next := ""
	for {
		list, err := d.emptyList(of)
		if err != nil {
			return err
		}
		switch err := d.live.List(ctx, list, client.Limit(page), client.Continue(next)); {
		case apierrors.IsForbidden(err):
			s.Missing = err.Error()
			return nil
		case apierrors.IsResourceExpired(err) && next != "":
			s, next = newShelf(k), "" // the continue token expired: start again
			d.shelves[of.GroupVersionKind] = s
			continue
		case err != nil:
			return err
		}
		if err := meta.EachListItem(list, func(o runtime.Object) error {
			object, is := o.(client.Object)
			if !is {
				return fmt.Errorf("%T is no object", o)
			}
			object.SetManagedFields(nil)
			if of.keep == nil || of.keep(object) {
				s.put(object)
			}
			return nil
		}); err != nil {
			return err
		}
		if next = list.GetContinue(); next == "" {
			s.sort()
			return nil
		}
	}
}

func (d *Dump) emptyList(of source) (client.ObjectList, error) {
	gvk := of.GroupVersionKind
	gvk.Kind += "List"
	o, err := d.scheme.New(gvk)
	if err != nil {
		return nil, err
	}
	list, is := o.(client.ObjectList)
	if !is {
		return nil, fmt.Errorf("%T is no list", o)
	}
	return list, nil
}

// ask reads metadata by name from the cluster, and keeps it.
func (d *Dump) ask(ctx context.Context, key client.ObjectKey, obj client.Object, opts ...client.GetOption) error {
	gvk, err := d.GroupVersionKindFor(obj)
	if err != nil {
		return err
	}
	s := d.shelves[gvk]
	if s != nil {
		if i, known := s.at[key]; known {
			return s.copyInto(obj, s.objects[i])
		}
		if s.absent[key] {
			plural, _ := meta.UnsafeGuessKindToResource(gvk)
			return apierrors.NewNotFound(plural.GroupResource(), key.Name)
		}
	}
	err = d.live.Get(ctx, key, obj, opts...)
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsForbidden(err) {
		return err
	}
	if s == nil {
		k := kindOf(gvk)
		k.Metadata, k.Named = true, true
		s = newShelf(k)
		d.shelves[gvk] = s
	}
	switch {
	case apierrors.IsForbidden(err):
		s.Missing = err.Error()
	case err != nil:
		s.absent[key] = true
	default:
		p := asMetadata(obj, gvk).DeepCopy()
		p.ManagedFields = nil
		s.put(p)
	}
	return err
}

// Complete reads the objects that single VMIs refer to, so that the cluster is no longer needed.
// Objects that cannot be read are recorded, and reported when that VMI is explained.
func (d *Dump) Complete(ctx context.Context) error {
	g := templatectrl.Gatherer{Client: d, Live: d}
	kv, err := g.KubeVirt(ctx)
	if err != nil {
		return err
	}
	config := template.ConfigFrom(kv, "")
	var guests v1.VirtualMachineInstanceList
	if err := d.List(ctx, &guests); err != nil {
		return err
	}
	for i := range guests.Items {
		if _, err := g.Facts(ctx, &guests.Items[i], config, nil); err != nil && ctx.Err() != nil {
			return errors.Join(ctx.Err(), err)
		}
	}
	for _, s := range d.shelves {
		if s.Named {
			s.sort()
		}
	}
	return nil
}
