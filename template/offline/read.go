// SPDX-License-Identifier: Apache-2.0

package offline

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	strictjson "sigs.k8s.io/json"

	"github.com/virtloom/virtloom/template/render"
)

// Object is one object of a manifest.
type Object struct {
	// Source is its position.
	Source Source
	// Kind is its kind, such as PersistentVolumeClaim.
	Kind string
	// Value is the object: of the type of package kubevirt.io/api or k8s.io/api that its kind has in the preferred version,
	// or a *metav1.PartialObjectMetadata for a NetworkAttachmentDefinition. Namespace and UID are set.
	Value metav1.Object
	// StandIn reports whether the manifest has no UID, so that the one in Value is derived from kind, namespace and name.
	StandIn bool
}

// String returns kind, namespace and name.
func (o Object) String() string { return objectName(o.Kind, o.Value.GetNamespace(), o.Value.GetName()) }

// Read decodes all manifests of a file. name is the file name in errors. Objects of skipped kinds are not returned. The
// error joins one *Error for each fault; the valid objects are returned in addition to it.
func Read(name string, r io.Reader) ([]Object, error) {
	content, err := io.ReadAll(r)
	if err != nil {
		return nil, &Error{Source: Source{File: name}, Reason: "cannot be read", Remedy: "use a readable file with manifests", Err: err}
	}
	all, err := documents(name, content)
	errs := []error{err}
	var objects []Object
	for _, doc := range all {
		if doc.json == nil {
			continue
		}
		more, err := doc.objects()
		objects = append(objects, more...)
		errs = append(errs, err)
	}
	return objects, errors.Join(errs...)
}

// head is the kind and name of an object.
type head struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Metadata   struct {
		Name      string `json:"name"`
		Namespace string `json:"namespace"`
	} `json:"metadata"`
}

// String returns the name of the object for errors.
func (h *head) String() string { return objectName(h.Kind, h.Metadata.Namespace, h.Metadata.Name) }

// listing is a List, or the list of one kind.
type listing struct {
	APIVersion string            `json:"apiVersion"`
	Kind       string            `json:"kind"`
	Metadata   metav1.ListMeta   `json:"metadata"`
	Items      []json.RawMessage `json:"items"`
}

// objects returns the object of a document, or those of its List.
func (d document) objects() ([]Object, error) {
	h, err := d.head()
	if err != nil {
		return nil, err
	}
	if !strings.HasSuffix(h.Kind, "List") {
		o, err := d.object(h)
		if o == nil {
			return nil, err
		}
		return []Object{*o}, err
	}
	var l listing
	if err := d.decode(h, &l); err != nil {
		return nil, err
	}
	var (
		objects []Object
		errs    []error
	)
	for i, raw := range l.Items {
		item := document{source: d.source, json: raw}
		item.source.Item = i + 1
		o, err := item.item(h)
		if o != nil {
			objects = append(objects, *o)
		}
		errs = append(errs, err)
	}
	return objects, errors.Join(errs...)
}

// item decodes one object of a list. In the list of one kind, the objects may omit the kind.
func (d document) item(list *head) (*Object, error) {
	var given struct{ APIVersion, Kind *string }
	if err := json.Unmarshal(d.json, &given); err == nil && list.Kind != "List" && given.APIVersion == nil && given.Kind == nil {
		h := &head{}
		if err := json.Unmarshal(d.json, h); err == nil {
			h.APIVersion, h.Kind = list.APIVersion, strings.TrimSuffix(list.Kind, "List")
			return d.object(h)
		}
	}
	h, err := d.head()
	if err != nil {
		return nil, err
	}
	return d.object(h)
}

func (d document) head() (*head, error) {
	h := &head{}
	if !bytes.HasPrefix(bytes.TrimSpace(d.json), []byte("{")) {
		return nil, d.fault("", "", "must be an object", "begin a manifest with apiVersion, kind and metadata")
	}
	if err := strictjson.UnmarshalCaseSensitivePreserveInts(d.json, h); err != nil {
		return nil, d.compare("", h, false)
	}
	if err := d.repeated(h); err != nil {
		return nil, err
	}
	switch k, known := kinds[h.Kind]; {
	case h.Kind == "":
		return nil, d.fault(h.String(), "kind", "must be set", "set the kind of the object, such as VirtualMachineInstance")
	case h.APIVersion == "" && known:
		return nil, d.fault(h.String(), "apiVersion", "must be set", "add apiVersion: "+k.versions[0])
	case h.APIVersion == "":
		return nil, d.fault(h.String(), "apiVersion", "must be set", "add the group and version of the object")
	}
	return h, nil
}

// object decodes a document that is no list. It returns nil without an error for a skipped kind.
func (d document) object(h *head) (*Object, error) {
	gv, err := schema.ParseGroupVersion(h.APIVersion)
	if err == nil && skipped[gv.WithKind(h.Kind).GroupKind()] {
		return nil, nil //nolint:nilnil // an object of no interest
	}
	k, known := kinds[h.Kind]
	if !known || !slices.Contains(k.versions, h.APIVersion) {
		field, reason, remedy := unread(h.APIVersion, h.Kind)
		return nil, d.fault(h.String(), field, reason, remedy)
	}
	v := k.empty()
	if err := d.decode(h, v); err != nil {
		return nil, err
	}
	if err := d.identify(h, k, v); err != nil {
		return nil, err
	}
	v.GetObjectKind().SetGroupVersionKind(schema.FromAPIVersionAndKind(k.versions[0], h.Kind))
	o := &Object{Source: d.source, Kind: h.Kind, Value: v}
	if n, ok := v.(*networkAttachmentDefinition); ok {
		o.Value = &metav1.PartialObjectMetadata{TypeMeta: n.TypeMeta, ObjectMeta: n.ObjectMeta}
	}
	if o.Value.GetUID() == "" {
		o.StandIn = true
		o.Value.SetUID(standIn(o.String()))
	}
	return o, nil
}

// decode decodes strictly.
func (d document) decode(h *head, into any) error {
	if err := d.compare(h.String(), into, true); err != nil {
		return err
	}
	if err := strictjson.UnmarshalCaseSensitivePreserveInts(d.json, into); err != nil {
		return d.fault(h.String(), "", oneLine(err), "correct the manifest")
	}
	return nil
}

// compare reports values of the wrong type and, if unknown is set, fields that the type does not have.
func (d document) compare(object string, into any, unknown bool) error {
	var errs []error
	for _, f := range faults(reflect.TypeOf(into), d.json, "") {
		switch {
		case !f.unknown:
			errs = append(errs, d.fault(object, f.field, f.reason, "correct the value"))
		case unknown:
			kind, _, _ := strings.Cut(object, " ")
			errs = append(errs, d.fault(object, f.field, "is not a field of "+kind,
				"correct its name (case-sensitive) or its position, or remove it"))
		}
	}
	return errors.Join(errs...)
}

// repeated reports duplicate fields in JSON. In YAML, the conversion fails already.
func (d document) repeated(h *head) error {
	var fields map[string]any
	repeats, err := strictjson.UnmarshalStrict(d.json, &fields, strictjson.DisallowDuplicateFields)
	if err != nil {
		return d.fault(h.String(), "", oneLine(err), "correct the manifest")
	}
	var errs []error
	for _, repeat := range repeats {
		field := strings.TrimSuffix(strings.TrimPrefix(repeat.Error(), `duplicate field "`), `"`)
		errs = append(errs, d.fault(h.String(), field, "is a duplicate", "keep one of them"))
	}
	return errors.Join(errs...)
}

// identify checks name and namespace, and sets a missing namespace.
func (d document) identify(h *head, k kind, v metav1.Object) error {
	if v.GetName() == "" {
		remedy := "set the name"
		if v.GetGenerateName() != "" {
			remedy = "set the name; only an API server supports generateName"
		}
		return d.fault(h.String(), "metadata.name", "must be set", remedy)
	}
	if problems := validation.IsDNS1123Subdomain(v.GetName()); len(problems) > 0 {
		return d.fault(h.String(), "metadata.name", fmt.Sprintf("%q: %s", v.GetName(), problems[0]), "correct the name")
	}
	namespace := v.GetNamespace()
	switch {
	case k.clusterly && namespace != "":
		return d.fault(h.String(), "metadata.namespace", "is not supported for the cluster-scoped kind "+h.Kind, "remove it")
	case k.clusterly:
		return nil
	case namespace == "":
		v.SetNamespace(metav1.NamespaceDefault)
		return nil
	}
	if problems := validation.IsDNS1123Label(namespace); len(problems) > 0 {
		return d.fault(h.String(), "metadata.namespace", fmt.Sprintf("%q: %s", namespace, problems[0]), "correct the namespace")
	}
	return nil
}

func (d document) fault(object, field, reason, remedy string) *Error {
	return &Error{Source: d.source, Object: object, Field: field, Reason: reason, Remedy: remedy, Err: render.ErrInvalid}
}

// objectName returns kind, namespace and name as far as they are known.
func objectName(kind, namespace, name string) string {
	if kind == "" {
		kind = "object"
	}
	switch {
	case name == "":
		return kind
	case namespace == "":
		return kind + " " + name
	default:
		return kind + " " + namespace + "/" + name
	}
}

// standIn returns a UID (version 8 of RFC 9562) derived from an object's kind, namespace and name.
func standIn(object string) types.UID {
	sum := sha256.Sum256([]byte(object))
	sum[6] = sum[6]&0x0f | 0x80
	sum[8] = sum[8]&0x3f | 0x80
	return types.UID(fmt.Sprintf("%x-%x-%x-%x-%x", sum[:4], sum[4:6], sum[6:8], sum[8:10], sum[10:16]))
}
