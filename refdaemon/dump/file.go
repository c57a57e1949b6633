// SPDX-License-Identifier: Apache-2.0

package dump

import (
	"bufio"
	"bytes"
	"cmp"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// The apiVersion and kind of a file.
const (
	fileVersion = "dump.virtloom.dev/v1alpha1"
	fileKind    = "Dump"
)

// ErrNotADump means that a file cannot be read as a dump.
var ErrNotADump = errors.New("dump: not a dump, or not all of it")

// header is the first line of a file.
type header struct {
	APIVersion string    `json:"apiVersion"`
	Kind       string    `json:"kind"`
	TakenAt    time.Time `json:"takenAt"`
	Kinds      []Kind    `json:"kinds"`
}

// Kinds returns the number of objects of each kind.
func (d *Dump) Kinds() []Kind {
	kinds := make([]Kind, 0, len(d.shelves))
	for _, s := range d.shelves {
		kinds = append(kinds, s.Kind)
	}
	slices.SortFunc(kinds, func(a, b Kind) int {
		return cmp.Or(cmp.Compare(a.APIVersion, b.APIVersion), cmp.Compare(a.Kind, b.Kind))
	})
	return kinds
}

// Write writes the dump, without the data that the package comment excludes.
func (d *Dump) Write(w io.Writer) error {
	r, err := newRedactor()
	if err != nil {
		return fmt.Errorf("dump: %w", err)
	}
	h := header{APIVersion: fileVersion, Kind: fileKind, TakenAt: d.TakenAt.UTC(), Kinds: d.Kinds()}
	if err := writeLine(w, h); err != nil {
		return err
	}
	for i := range h.Kinds {
		s := d.shelves[h.Kinds[i].gvk()]
		for _, o := range s.objects {
			o = r.redacted(o)
			o.GetObjectKind().SetGroupVersionKind(s.gvk())
			if err := writeLine(w, o); err != nil {
				return err
			}
		}
	}
	return nil
}

func writeLine(w io.Writer, v any) error {
	text, err := json.Marshal(v)
	if err == nil {
		_, err = w.Write(append(withoutCredentials(text), '\n'))
	}
	if err != nil {
		return fmt.Errorf("dump: write: %w", err)
	}
	return nil
}

// WriteFile writes the dump into a file that only its owner can read, atomically.
func (d *Dump) WriteFile(name string) (err error) {
	f, err := os.CreateTemp(filepath.Dir(name), "."+filepath.Base(name)+"-*")
	if err != nil {
		return fmt.Errorf("dump: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, f.Close(), os.Remove(f.Name()))
		}
	}()
	out := bufio.NewWriter(f)
	if strings.HasSuffix(name, ".gz") {
		z := gzip.NewWriter(out)
		err = errors.Join(d.Write(z), z.Close())
	} else {
		err = d.Write(out)
	}
	if err = errors.Join(err, out.Flush()); err != nil {
		return err
	}
	if err := f.Close(); err != nil {
		return fmt.Errorf("dump: %w", err)
	}
	return os.Rename(f.Name(), name)
}

// ReadFile reads a dump from a file. The scheme must have all listed kinds.
func ReadFile(name string, scheme *runtime.Scheme) (*Dump, error) {
	f, err := os.Open(filepath.Clean(name))
	if err != nil {
		return nil, fmt.Errorf("dump: %w", err)
	}
	defer f.Close()
	d, err := Read(f, scheme)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return d, nil
}

// Read reads a dump written by Write, compressed or not.
func Read(r io.Reader, scheme *runtime.Scheme) (*Dump, error) {
	in := bufio.NewReader(r)
	if magic, err := in.Peek(2); err == nil && bytes.Equal(magic, []byte{0x1f, 0x8b}) {
		z, err := gzip.NewReader(in)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", ErrNotADump, err)
		}
		in = bufio.NewReader(z)
	}
	lines := json.NewDecoder(in)
	var h header
	if err := lines.Decode(&h); err != nil {
		return nil, fmt.Errorf("%w: its header: %w", ErrNotADump, err)
	}
	if h.APIVersion != fileVersion || h.Kind != fileKind {
		return nil, fmt.Errorf("%w: it is of apiVersion %q, kind %q; this program knows %q, %q", ErrNotADump, h.APIVersion, h.Kind, fileVersion, fileKind)
	}
	d := newDump(h.TakenAt, scheme)
	for _, k := range h.Kinds {
		d.shelves[k.gvk()] = newShelf(k)
	}
	for {
		var raw json.RawMessage
		switch err := lines.Decode(&raw); {
		case errors.Is(err, io.EOF):
			return d, d.whole(h)
		case err != nil:
			return nil, fmt.Errorf("%w: %w", ErrNotADump, err)
		}
		if err := d.decode(raw); err != nil {
			return nil, fmt.Errorf("%w: %w", ErrNotADump, err)
		}
	}
}

// decode adds an object.
func (d *Dump) decode(raw []byte) error {
	var of metav1.TypeMeta
	if err := json.Unmarshal(raw, &of); err != nil {
		return err
	}
	gvk := schema.FromAPIVersionAndKind(of.APIVersion, of.Kind)
	s := d.shelves[gvk]
	if s == nil {
		return fmt.Errorf("an object of apiVersion %q, kind %q, which the header does not name", of.APIVersion, of.Kind)
	}
	var o client.Object = &metav1.PartialObjectMetadata{}
	if !s.Metadata {
		made, err := d.scheme.New(gvk)
		if err != nil {
			return err
		}
		object, is := made.(client.Object)
		if !is {
			return fmt.Errorf("kind %s is none of objects", gvk.Kind)
		}
		o = object
	}
	if err := json.Unmarshal(raw, o); err != nil {
		return fmt.Errorf("an object of kind %s: %w", gvk.Kind, err)
	}
	if !s.Metadata {
		o.GetObjectKind().SetGroupVersionKind(schema.GroupVersionKind{}) // as clients return it
	}
	s.put(o)
	return nil
}

// whole checks that all objects counted in the header are present.
func (d *Dump) whole(h header) error {
	for _, k := range h.Kinds {
		if n := len(d.shelves[k.gvk()].objects); n != k.Objects {
			return fmt.Errorf("%w: expected %d objects of kind %s, got %d", ErrNotADump, k.Objects, k.Kind, n)
		}
	}
	return nil
}
