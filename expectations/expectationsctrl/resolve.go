// SPDX-License-Identifier: Apache-2.0

package expectationsctrl

import (
	"context"
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/virtloom/virtloom/expectations"
)

// ErrUnresolved is returned when a live read could not settle an expectation because the versions cannot be compared.
var ErrUnresolved = errors.New("live read does not settle the write")

// Resolver asks the API server about writes that the cache has not shown in time. All fields are required.
type Resolver struct {
	// Tracker is asked and told.
	Tracker *expectations.Tracker
	// Reader reads from the API server and not from a cache, such as a manager's GetAPIReader.
	Reader client.Reader
	// Mapper finds the version under which a kind is served.
	Mapper meta.RESTMapper
}

// Check is Tracker.Check followed, if the verdict is Expired, by Resolve. It returns the verdict that then holds.
func (r *Resolver) Check(ctx context.Context, o expectations.Owner) (expectations.Verdict, error) {
	v := r.Tracker.Check(o)
	if v.State != expectations.Expired {
		return v, nil
	}
	if err := r.Resolve(ctx, v); err != nil {
		return v, err
	}
	return r.Tracker.Check(o), nil
}

// Resolve reads the object of every pending write of the verdict that has a problem, and feeds the answers back. It
// reads metadata only. Objects that could not be read or compared are reported in one error; their writes stay
// expired. Those that the answer gives more time wait again.
func (r *Resolver) Resolve(ctx context.Context, v expectations.Verdict) error {
	var errs []error
	for _, p := range v.Pending {
		if p.Problem == expectations.NoProblem {
			continue
		}
		live, err := r.read(ctx, p.Ref)
		if err != nil {
			errs = append(errs, fmt.Errorf("resolve %s: %w", p, err))
			continue
		}
		if r.Tracker.Answer(p, live) == expectations.Unordered {
			errs = append(errs, fmt.Errorf("resolve %s: %w", p, ErrUnresolved))
		}
	}
	return errors.Join(errs...)
}

// read returns the live object, or nil if the API server says that there is none.
func (r *Resolver) read(ctx context.Context, ref expectations.Ref) (metav1.Object, error) {
	mapping, err := r.Mapper.RESTMapping(ref.Kind)
	if err != nil {
		return nil, fmt.Errorf("find version of %s: %w", ref.Kind, err)
	}
	live := &metav1.PartialObjectMetadata{}
	live.SetGroupVersionKind(mapping.GroupVersionKind)
	err = r.Reader.Get(ctx, client.ObjectKey{Namespace: ref.Namespace, Name: ref.Name}, live)
	if apierrors.IsNotFound(err) {
		return nil, nil //nolint:nilnil // absence is an answer
	}
	if err != nil {
		return nil, err
	}
	return live, nil
}
