// SPDX-License-Identifier: Apache-2.0

package memapi

import (
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Kind is a kind of objects that a server has.
type Kind struct {
	schema.GroupVersionKind
	// Plural names it in addresses.
	Plural string
	// Cluster says that its objects are in no namespace.
	Cluster bool
	// Status says that the status is written apart from the rest.
	Status bool
	// Graceful says that a deletion takes until somebody confirms it, as that of a Pod on a node.
	Graceful bool
	// Typed is an object of the kind, by whose fields strategic patches are merged; nil refuses them.
	Typed any
}

// resource is the kind as discovery and addresses call it.
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
