// SPDX-License-Identifier: Apache-2.0

package vmipatch

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	v1 "kubevirt.io/api/core/v1"
)

// ErrUnsupported means that two versions of an object differ in a part that this package does
// not patch, or that the first was never stored.
var ErrUnsupported = errors.New("patch is not supported")

// Between returns the JSON Patch from was, the version that was decided upon, to want; nil if
// they do not differ. The API server rejects it, see [Refused], if a changed part or a guard no
// longer has its value in was. The two may differ in labels, annotations, finalizers and
// status; the error is [ErrUnsupported] if they differ elsewhere.
func Between(was, want *v1.VirtualMachineInstance, guards ...Guard) ([]byte, error) {
	if err := supported(was, want); err != nil {
		return nil, err
	}
	before, err := documentOf(was)
	if err != nil {
		return nil, err
	}
	after, err := documentOf(want)
	if err != nil {
		return nil, err
	}
	p := &patch{tested: map[path]bool{}}
	said, says := member(before, "status"), member(after, "status")
	differs := !reflect.DeepEqual(said, says)
	empty := bare(said, statusType)
	p.version = slices.ContainsFunc(guards, Guard.isVersion) ||
		empty && (differs || slices.ContainsFunc(guards, Guard.ofStatus))
	if err := p.open(was, before, guards); err != nil {
		return nil, err
	}
	p.metadata(member(before, "metadata"), member(after, "metadata"))
	switch {
	case !differs:
	case empty:
		p.put("/status", says)
	default:
		p.object("/status", statusType, said, says)
	}
	return p.encode()
}

var (
	statusType = reflect.TypeFor[v1.VirtualMachineInstanceStatus]()
	mapType    = reflect.TypeFor[map[string]string]()
)

// Write sends the patch from was to want. If the API server rejects it, Write sends a patch that
// is accepted if, and only if, the object has not been written since was: so a test that cannot
// succeed, because of the stored encoding, blocks no writer. An error of send is returned;
// Refused reports whether the caller has to decide again. send is not called if nothing
// differs, and must decode each answer into a separate object.
func Write(was, want *v1.VirtualMachineInstance, send func(patch []byte) error, guards ...Guard) error {
	data, err := Between(was, want, guards...)
	if err != nil || data == nil {
		return err
	}
	if err = send(data); !Refused(err) || slices.ContainsFunc(guards, Guard.isVersion) {
		return err
	}
	if data, err = Between(was, want, Version); err != nil {
		return err
	}
	return send(data)
}

// supported checks that the versions differ only in patchable parts.
func supported(was, want *v1.VirtualMachineInstance) error {
	switch {
	case was.UID == "" || was.ResourceVersion == "":
		return fmt.Errorf("vmipatch: %s/%s was never stored: %w", was.Namespace, was.Name, ErrUnsupported)
	case !equality.Semantic.DeepEqual(was.Spec, want.Spec):
		return fmt.Errorf("vmipatch: %s/%s: the spec changes: %w", was.Namespace, was.Name, ErrUnsupported)
	case !equality.Semantic.DeepEqual(fixed(was.ObjectMeta), fixed(want.ObjectMeta)):
		return fmt.Errorf("vmipatch: %s/%s: metadata other than labels, annotations and finalizers change: %w", was.Namespace, was.Name, ErrUnsupported)
	}
	return nil
}

// fixed returns the metadata that no patch changes.
func fixed(m metav1.ObjectMeta) metav1.ObjectMeta {
	m.Labels, m.Annotations, m.Finalizers, m.ManagedFields = nil, nil, nil, nil
	return m
}

func member(doc map[string]any, name string) map[string]any {
	m, _ := doc[name].(map[string]any)
	return m
}

// path is a JSON pointer (RFC 6901).
type path string

var escaper = strings.NewReplacer("~", "~0", "/", "~1")

func (at path) to(names ...string) path {
	for _, n := range names {
		at += path("/" + escaper.Replace(n))
	}
	return at
}

func (at path) index(i int) path { return at.to(strconv.Itoa(i)) }

// op is one operation of a JSON Patch.
type op struct {
	Op   string `json:"op"`
	Path path   `json:"path"`
	// Value points to nil for a null.
	Value *any `json:"value,omitempty"`
}

// patch is a patch under construction. All tests precede its changes, so that they refer to the
// stored object.
type patch struct {
	// version is true if the resourceVersion is tested, which makes other tests superfluous.
	version bool
	tested  map[path]bool
	tests   []op
	changes []op
}

func (p *patch) open(was *v1.VirtualMachineInstance, before map[string]any, guards []Guard) error {
	p.must("/metadata/uid", string(was.UID))
	if p.version {
		p.must("/metadata/resourceVersion", was.ResourceVersion)
	}
	for _, g := range guards {
		if g.isVersion() {
			continue
		}
		if err := p.guard(g, before); err != nil {
			return err
		}
	}
	return nil
}

// must adds a test unconditionally.
func (p *patch) must(at path, v any) { p.tests = append(p.tests, op{"test", at, &v}) }

// test adds a test, once per path.
func (p *patch) test(at path, v any) {
	if p.version || p.tested[at] {
		return
	}
	p.tested[at] = true
	p.must(at, v)
}

// put sets a member of an object to v, whether it exists or not.
func (p *patch) put(at path, v any) { p.changes = append(p.changes, op{"add", at, &v}) }

func (p *patch) remove(at path) { p.changes = append(p.changes, op{Op: "remove", Path: at}) }

// encode returns the patch, nil if it changes nothing. Strings are escaped as by the API server's
// encoder, which compares them byte by byte.
func (p *patch) encode() ([]byte, error) {
	if len(p.changes) == 0 {
		return nil, nil
	}
	return json.Marshal(append(p.tests, p.changes...))
}
