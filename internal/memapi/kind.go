// SPDX-License-Identifier: Apache-2.0

package memapi

import (
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Kind is a kind of objects of a server.
type Kind struct {
	schema.GroupVersionKind
	// Plural is its name in URLs.
	Plural string
	// Cluster is true for cluster-scoped kinds.
	Cluster bool
	// Status is true for kinds with a status subresource.
	Status bool
	// Graceful is true if another component must confirm a deletion, as for a Pod on a node.
	Graceful bool
	// Typed is an object of the kind, whose type defines strategic merges; nil rejects such patches.
	Typed any
}

// resource returns the resource of the kind in discovery and URLs.
func (k *Kind) resource() schema.GroupVersionResource {
	return k.GroupVersion().WithResource(k.Plural)
}

// key names an object of a kind.
type key struct{ namespace, name string }

// stored is one version of an object. It is never changed.
type stored struct {
	version uint64
	object  map[string]any
	// text is the object in JSON, brief its metadata alone.
	text, brief []byte
	labels      map[string]string
	// node is spec.nodeName, by which Pods can be selected.
	node string
}

// change is one step of the history: what was and what is; one of them may be nil.
type change struct {
	version uint64
	kind    *Kind
	key     key
	was, is *stored
}

// table has the objects of one kind.
type table struct {
	kind    *Kind
	objects map[key]*stored
}
