// SPDX-License-Identifier: Apache-2.0

package memapi

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"
)

// remembered is the number of changes that a watch may lag behind before it must list again.
const remembered = 1000

// Change is a completed write of a server.
type Change struct {
	// By is the name of the client.
	By string
	// Verb is create, update or delete.
	Verb string
	Kind schema.GroupKind
	// Name is the name of the object, with its namespace.
	Name types.NamespacedName
	// Was and Is are the object before and after, nil if absent. They must not be modified.
	Was, Is map[string]any
}

// Server is an API server. Create one with [New]. It is safe for concurrent use.
type Server struct {
	mu      sync.Mutex
	version uint64
	tables  map[schema.GroupVersionResource]*table
	// history has the last changes, the oldest of which follows version dropped.
	history []change
	dropped uint64
	watches map[*watch]struct{}
	// observe is called for every write, in order, with mu held.
	observe func(Change)

	requests atomic.Int64
}

// NewServer returns a server without objects. If observe is set it is called for every write, in order; it must not call the
// server.
func NewServer(kinds []Kind, observe func(Change)) *Server {
	s := &Server{tables: map[schema.GroupVersionResource]*table{}, watches: map[*watch]struct{}{}, observe: observe}
	for i := range kinds {
		k := &kinds[i]
		s.tables[k.resource()] = &table{kind: k, objects: map[key]*stored{}}
	}
	if s.observe == nil {
		s.observe = func(Change) {}
	}
	return s
}

// Watches returns the number of open watches.
func (s *Server) Watches() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.watches)
}

// Compact drops the history of the objects: watches that lag behind must list again.
func (s *Server) Compact() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.history, s.dropped = nil, s.version
}

// Count returns the number of objects.
func (s *Server) Count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	for _, t := range s.tables {
		n += len(t.objects)
	}
	return n
}

// Requests returns the number of requests so far.
func (s *Server) Requests() int64 { return s.requests.Load() }

// request is what a client asks for, understood.
type request struct {
	by    string
	table *table
	key   key
	// part is a subresource, empty for the object itself.
	part string
	body []byte
	// media is the type of the body.
	media string
}

func (r *request) groupResource() schema.GroupResource {
	return r.table.kind.resource().GroupResource()
}

// edit makes the next version of an object out of the present one.
type edit func(was map[string]any) (map[string]any, error)

func (s *Server) lockedGet(r *request) (*stored, error) {
	o := r.table.objects[r.key]
	if o == nil {
		return nil, apierrors.NewNotFound(r.groupResource(), r.key.name)
	}
	return o, nil
}

// create stores a new object.
func (s *Server) create(r *request) (*stored, error) {
	o, err := decode(r.body)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	u := unstructured.Unstructured{Object: o}
	if u.GetName() == "" && u.GetGenerateName() != "" {
		u.SetName(u.GetGenerateName() + strconv.FormatUint(s.version, 36))
	}
	r.key.name = u.GetName()
	if r.key.name == "" {
		return nil, apierrors.NewBadRequest("an object needs a name")
	}
	if r.table.objects[r.key] != nil {
		return nil, apierrors.NewAlreadyExists(r.groupResource(), r.key.name)
	}
	if r.table.kind.Status {
		delete(o, "status")
	}
	u.SetNamespace(r.key.namespace)
	u.SetUID(uuid.NewUUID())
	u.SetGeneration(1)
	unstructured.RemoveNestedField(o, "metadata", "deletionTimestamp")
	if err := unstructured.SetNestedField(o, time.Now().UTC().Format(time.RFC3339), "metadata", "creationTimestamp"); err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	return s.lockedStore(r, "create", nil, o)
}

// update changes an object, and removes it if it is being deleted and has no finalizers left.
func (s *Server) update(r *request, e edit) (*stored, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	was, err := s.lockedGet(r)
	if err != nil {
		return nil, err
	}
	next, err := e(runtime.DeepCopyJSON(was.object))
	if err != nil {
		return nil, err
	}
	if err := r.keep(was.object, next); err != nil {
		return nil, err
	}
	u := unstructured.Unstructured{Object: next}
	if v := u.GetResourceVersion(); v != "" && v != strconv.FormatUint(was.version, 10) {
		return nil, apierrors.NewConflict(r.groupResource(), r.key.name, errors.New("the object has been modified"))
	}
	if deepEqual(was.object, next) {
		return was, nil
	}
	if u.GetDeletionTimestamp() != nil && len(u.GetFinalizers()) == 0 && !r.table.kind.Graceful {
		return s.lockedRemove(r, was)
	}
	return s.lockedStore(r, "update", was, next)
}

// keep restores fields that a request of this kind cannot change.
func (r *request) keep(was, next map[string]any) error {
	wasMeta, _ := was["metadata"].(map[string]any)
	meta, ok := next["metadata"].(map[string]any)
	if !ok {
		return apierrors.NewBadRequest("an object needs metadata")
	}
	if uid, given := meta["uid"]; given && uid != wasMeta["uid"] {
		return apierrors.NewConflict(r.groupResource(), r.key.name, errors.New("the UID in the precondition is another"))
	}
	for _, f := range []string{"name", "namespace", "uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds", "generation"} {
		setField(meta, f, wasMeta[f])
	}
	setField(next, "apiVersion", was["apiVersion"])
	setField(next, "kind", was["kind"])
	switch {
	case r.part == "status":
		setField(next, "spec", was["spec"])
	case r.table.kind.Status:
		setField(next, "status", was["status"])
	}
	if !deepEqual(was["spec"], next["spec"]) {
		if g, counted := wasMeta["generation"].(int64); counted {
			meta["generation"] = g + 1
		}
	}
	return nil
}

func setField(o map[string]any, field string, value any) {
	if value == nil {
		delete(o, field)
		return
	}
	o[field] = value
}

// deletion is what a request says of a deletion.
type deletion struct {
	GracePeriodSeconds *int64
	Preconditions      struct {
		UID             *types.UID
		ResourceVersion *string
	}
}

// forbids reports whether the preconditions of a deletion do not match the object.
func (d *deletion) forbids(u *unstructured.Unstructured) bool {
	p := d.Preconditions
	return p.UID != nil && *p.UID != u.GetUID() || p.ResourceVersion != nil && *p.ResourceVersion != u.GetResourceVersion()
}

// lingers reports whether another component has to confirm the deletion: a Pod's node.
func (d *deletion) lingers(k *Kind, o map[string]any) bool {
	node, _, _ := unstructured.NestedString(o, "spec", "nodeName")
	return k.Graceful && node != "" && (d.GracePeriodSeconds == nil || *d.GracePeriodSeconds > 0)
}

// remove deletes an object, or sets its deletion timestamp.
func (s *Server) remove(r *request) (*stored, error) {
	var d deletion
	if len(r.body) > 0 {
		if err := json.Unmarshal(r.body, &d); err != nil {
			return nil, apierrors.NewBadRequest(err.Error())
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	was, err := s.lockedGet(r)
	if err != nil {
		return nil, err
	}
	u := unstructured.Unstructured{Object: was.object}
	switch {
	case d.forbids(&u):
		return nil, apierrors.NewConflict(r.groupResource(), r.key.name, errors.New("a precondition failed"))
	case !d.lingers(r.table.kind, was.object) && len(u.GetFinalizers()) == 0:
		return s.lockedRemove(r, was)
	case u.GetDeletionTimestamp() != nil:
		return was, nil
	}
	next := unstructured.Unstructured{Object: runtime.DeepCopyJSON(was.object)}
	grace := int64(30)
	if d.GracePeriodSeconds != nil {
		grace = *d.GracePeriodSeconds
	}
	next.SetDeletionGracePeriodSeconds(&grace)
	err = unstructured.SetNestedField(next.Object, time.Now().UTC().Format(time.RFC3339), "metadata", "deletionTimestamp")
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	return s.lockedStore(r, "delete", was, next.Object)
}

// lockedStore stores the next version of an object and emits its event.
func (s *Server) lockedStore(r *request, verb string, was *stored, next map[string]any) (*stored, error) {
	u := unstructured.Unstructured{Object: next}
	s.version++
	u.SetResourceVersion(strconv.FormatUint(s.version, 10))
	u.SetManagedFields(nil)
	is, err := seal(next, s.version)
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	r.table.objects[r.key] = is
	s.lockedEmit(r, verb, change{version: s.version, kind: r.table.kind, key: r.key, was: was, is: is})
	return is, nil
}

// lockedRemove removes an object and emits its event. It returns the last version.
func (s *Server) lockedRemove(r *request, was *stored) (*stored, error) {
	s.version++
	u := unstructured.Unstructured{Object: runtime.DeepCopyJSON(was.object)}
	u.SetResourceVersion(strconv.FormatUint(s.version, 10))
	last, err := seal(u.Object, s.version)
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	delete(r.table.objects, r.key)
	s.lockedEmit(r, "delete", change{version: s.version, kind: r.table.kind, key: r.key, was: last})
	return last, nil
}

func (s *Server) lockedEmit(r *request, verb string, c change) {
	s.history = append(s.history, c)
	if len(s.history) > 2*remembered {
		s.dropped = s.history[remembered-1].version
		s.history = append([]change(nil), s.history[remembered:]...)
	}
	for w := range s.watches {
		w.offer(c)
	}
	change := Change{By: r.by, Verb: verb, Kind: c.kind.GroupKind(), Name: types.NamespacedName{Namespace: c.key.namespace, Name: c.key.name}}
	if c.was != nil {
		change.Was = c.was.object
	}
	if c.is != nil {
		change.Is = c.is.object
	}
	s.observe(change)
}

// seal makes a version of an object, whose content must not be changed any more.
func seal(o map[string]any, version uint64) (*stored, error) {
	text, err := json.Marshal(o)
	if err != nil {
		return nil, fmt.Errorf("memapi: %w", err)
	}
	brief, err := json.Marshal(map[string]any{"apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata", "metadata": o["metadata"]})
	if err != nil {
		return nil, fmt.Errorf("memapi: %w", err)
	}
	node, _, _ := unstructured.NestedString(o, "spec", "nodeName") // other kinds have none
	return &stored{version: version, object: o, text: text, brief: brief, labels: (&unstructured.Unstructured{Object: o}).GetLabels(), node: node}, nil
}
