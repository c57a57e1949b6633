// SPDX-License-Identifier: Apache-2.0

package dump

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"

	"github.com/virtloom/virtloom/internal/readonly"
)

// shelf holds the objects of one kind.
type shelf struct {
	Kind
	// objects are ordered by key, at has their positions.
	objects []client.Object
	at      map[client.ObjectKey]int
	// indexes hold the objects by index name and value.
	indexes map[string]map[string][]client.Object
	// absent are keys of Named objects that do not exist.
	absent map[client.ObjectKey]bool
}

func newShelf(k Kind) *shelf {
	return &shelf{
		Kind: k, at: map[client.ObjectKey]int{}, indexes: map[string]map[string][]client.Object{}, absent: map[client.ObjectKey]bool{},
	}
}

func (s *shelf) put(o client.Object) {
	key := client.ObjectKeyFromObject(o)
	if i, known := s.at[key]; known {
		s.objects[i] = o
		return
	}
	s.at[key] = len(s.objects)
	s.objects = append(s.objects, o)
	s.Objects = len(s.objects)
}

// sort sorts the objects by key.
func (s *shelf) sort() {
	slices.SortFunc(s.objects, func(a, b client.Object) int {
		return strings.Compare(a.GetNamespace()+"/"+a.GetName(), b.GetNamespace()+"/"+b.GetName())
	})
	for i, o := range s.objects {
		s.at[client.ObjectKeyFromObject(o)] = i
	}
}

// Client returns a read-only client of the dump.
func (d *Dump) Client() client.Client { return readonly.Client{Source: d} }

// Scheme returns the scheme of the dump's objects.
func (d *Dump) Scheme() *runtime.Scheme { return d.scheme }

// RESTMapper returns a mapper of the kinds that the cluster serves.
func (d *Dump) RESTMapper() meta.RESTMapper {
	m := meta.NewDefaultRESTMapper(nil)
	for gvk, s := range d.shelves {
		m.Add(gvk, s.scope())
	}
	return m
}

// GroupVersionKindFor is part of client.Client.
func (d *Dump) GroupVersionKindFor(obj runtime.Object) (schema.GroupVersionKind, error) {
	return apiutil.GVKForObject(obj, d.scheme)
}

// IsObjectNamespaced is part of client.Client.
func (d *Dump) IsObjectNamespaced(obj runtime.Object) (bool, error) {
	return apiutil.IsObjectNamespaced(obj, d.scheme, d.RESTMapper())
}

// IndexField implements client.FieldIndexer: objects can be listed by the field afterwards.
func (d *Dump) IndexField(_ context.Context, obj client.Object, field string, values client.IndexerFunc) error {
	gvk, err := d.GroupVersionKindFor(obj)
	if err != nil {
		return err
	}
	s := d.shelves[gvk]
	if s == nil {
		return nil // no objects of the kind
	}
	if s.Metadata {
		return fmt.Errorf("dump: index %s: of %s there is only metadata", field, gvk.Kind)
	}
	index := map[string][]client.Object{}
	for _, o := range s.objects {
		for _, v := range values(o) {
			index[v] = append(index[v], o)
		}
	}
	s.indexes[field] = index
	return nil
}

// shelf returns the objects of a kind.
func (d *Dump) shelf(gvk schema.GroupVersionKind) (*shelf, error) {
	s := d.shelves[gvk]
	switch {
	case s == nil:
		return nil, &meta.NoKindMatchError{GroupKind: gvk.GroupKind(), SearchedVersions: []string{gvk.Version}}
	case s.Missing != "":
		return nil, fmt.Errorf("dump: objects of kind %s are not in the dump: %s", gvk.Kind, s.Missing)
	}
	return s, nil
}

// Get is part of client.Reader. Kinds that are read only by name are read from the cluster on first use,
// if the dump was taken from one.
func (d *Dump) Get(ctx context.Context, key client.ObjectKey, obj client.Object, opts ...client.GetOption) error {
	gvk, err := d.GroupVersionKindFor(obj)
	if err != nil {
		return err
	}
	if s := d.shelves[gvk]; d.live != nil && (s == nil || s.Named) {
		return d.ask(ctx, key, obj, opts...)
	}
	s, err := d.shelf(gvk)
	if err != nil {
		return err
	}
	i, found := s.at[key]
	if !found {
		plural, _ := meta.UnsafeGuessKindToResource(gvk)
		return apierrors.NewNotFound(plural.GroupResource(), key.Name)
	}
	return s.copyInto(obj, s.objects[i])
}

// copyInto copies an object into out of the same kind, or its metadata.
func (s *shelf) copyInto(out, o client.Object) error {
	if p, partial := out.(*metav1.PartialObjectMetadata); partial {
		*p = *asMetadata(o, s.gvk()).DeepCopy()
		return nil
	}
	from, to := reflect.ValueOf(o.DeepCopyObject()), reflect.ValueOf(out)
	if from.Type() != to.Type() {
		return fmt.Errorf("dump: read %T as %T: there is no such form of it", o, out)
	}
	to.Elem().Set(from.Elem())
	return nil
}

// List is part of client.Reader.
func (d *Dump) List(_ context.Context, list client.ObjectList, opts ...client.ListOption) error {
	gvk, err := d.GroupVersionKindFor(list)
	if err != nil {
		return err
	}
	gvk.Kind = strings.TrimSuffix(gvk.Kind, "List")
	s, err := d.shelf(gvk)
	if err != nil {
		return err
	}
	var o client.ListOptions
	o.ApplyOptions(opts)
	from, err := s.selected(o.FieldSelector)
	if err != nil {
		return err
	}
	_, partial := list.(*metav1.PartialObjectMetadataList)
	if s.Metadata && !partial {
		return fmt.Errorf("dump: list %T: of %s there is only metadata", list, gvk.Kind)
	}
	var found []runtime.Object
	for _, object := range from {
		if o.Namespace != "" && object.GetNamespace() != o.Namespace || o.LabelSelector != nil && !o.LabelSelector.Matches(labels.Set(object.GetLabels())) {
			continue
		}
		if partial {
			found = append(found, asMetadata(object, gvk).DeepCopy())
		} else {
			found = append(found, object.DeepCopyObject())
		}
	}
	return meta.SetList(list, found)
}

// selected returns the objects that match a selector of one indexed field; all without one.
func (s *shelf) selected(f fields.Selector) ([]client.Object, error) {
	if f == nil || f.Empty() {
		return s.objects, nil
	}
	if of := f.Requirements(); len(of) == 1 {
		if value, exact := f.RequiresExactMatch(of[0].Field); exact {
			if index, known := s.indexes[of[0].Field]; known {
				return index[value], nil
			}
		}
	}
	return nil, fmt.Errorf("dump: list %s by %q: there is no such index", s.Kind.Kind, f)
}
