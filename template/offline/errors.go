// SPDX-License-Identifier: Apache-2.0

package offline

import (
	"errors"
	"fmt"
	"strings"

	"github.com/virtloom/virtloom/template/render"
)

// Source is the position of an object in its file.
type Source struct {
	// File is the name passed to Read.
	File string
	// Document is the number of the document in the file, starting with 1. Documents without content do not count.
	Document int
	// Line is the first line of the document, starting with 1.
	Line int
	// Item is the number of the object in a List, starting with 1; 0 outside of one.
	Item int
}

// String returns file, document and line, and the item of a List: "vm.yaml: document 2 (line 14), item 3".
func (s Source) String() string {
	text := s.File
	if s.Document > 0 {
		text += fmt.Sprintf(": document %d (line %d)", s.Document, s.Line)
	}
	if s.Item > 0 {
		text += fmt.Sprintf(", item %d", s.Item)
	}
	return text
}

// Error is a fault of a manifest, or of the combination of manifests.
type Error struct {
	// Source is the position of the object. Its zero value means all manifests together.
	Source Source
	// Object is kind, namespace and name, as far as they are known.
	Object string
	// Field is the path of the field at fault, such as spec.volumes[2].containerDisk.image; empty for the whole object.
	Field string
	// Reason says why the field or object is rejected.
	Reason string
	// Remedy says how to fix it.
	Remedy string
	// Err is the class of the error: render.ErrInvalid, render.ErrMissingFact or the error of the reader.
	Err error
}

// Error returns source, object, field, reason and remedy in one line.
func (e *Error) Error() string {
	var parts []string
	for _, part := range []string{e.Source.String(), e.Object, e.Field, e.Reason} {
		if part != "" {
			parts = append(parts, part)
		}
	}
	text := strings.Join(parts, ": ")
	if e.Err != nil && !errors.Is(e.Err, render.ErrInvalid) && !errors.Is(e.Err, render.ErrMissingFact) {
		text += ": " + e.Err.Error()
	}
	if e.Remedy != "" {
		text += "; " + e.Remedy
	}
	return text
}

// Unwrap returns the class or cause.
func (e *Error) Unwrap() error { return e.Err }
