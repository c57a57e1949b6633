// SPDX-License-Identifier: Apache-2.0

package instancetype

import (
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Kinds of objects that a [Ref] names.
const (
	KindRevision            = "ControllerRevision"
	KindInstancetype        = "VirtualMachineInstancetype"
	KindClusterInstancetype = "VirtualMachineClusterInstancetype"
	KindPreference          = "VirtualMachinePreference"
	KindClusterPreference   = "VirtualMachineClusterPreference"
	KindClaim               = "PersistentVolumeClaim"
	KindDataVolume          = "DataVolume"
	KindDataSource          = "DataSource"
	KindSnapshot            = "VolumeSnapshot"
)

// Ref names one object of the API; Namespace is empty for a cluster-wide one.
type Ref struct{ Kind, Namespace, Name string }

// String returns the reference as kind and name.
func (r Ref) String() string {
	if r.Namespace == "" {
		return r.Kind + " " + r.Name
	}
	return r.Kind + " " + r.Namespace + "/" + r.Name
}

// Objects are the objects that were read. A nil value is an object that does not exist; an object without an entry was
// not read. A VolumeSnapshot needs its metadata only.
type Objects map[Ref]metav1.Object

// reading is one question and what it lacks.
type reading struct {
	objects Objects
	missing []Ref
}

// get returns an object, and whether it was read. An object that was not read is requested.
func (r *reading) get(ref Ref) (object metav1.Object, read bool) {
	object, read = r.objects[ref]
	if !read {
		r.missing = append(r.missing, ref)
	}
	return object, read
}

// as returns an object of the expected type; ok is false for one that does not exist, or is another type.
func as[T any](o metav1.Object) (t *T, ok bool) {
	t, ok = any(o).(*T)
	return t, ok && t != nil
}

// is reports whether the kind is one of the spellings of a resource, which KubeVirt accepts in any case.
func is(kind string, spellings ...string) bool {
	for _, s := range spellings {
		if strings.EqualFold(kind, s) {
			return true
		}
	}
	return false
}
