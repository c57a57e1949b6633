// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// archive writes the images of a layout whose names are wanted, as "docker save" does. It is complete or not there.
func archive(from, to string, wanted func(name string) bool) error {
	images, err := named(from, wanted)
	if err != nil {
		return err
	}
	raw, err := os.CreateTemp("", "images-*.tar")
	if err != nil {
		return err
	}
	defer func() { _ = errors.Join(raw.Close(), os.Remove(raw.Name())) }()
	if err := tarball.MultiWrite(images, raw); err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(to), ".images-*.tar")
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(f.Name()) }()
	err = inOrder(raw, f)
	if err := errors.Join(err, f.Chmod(0o644), f.Close()); err != nil { //nolint:gosec // everybody may read it
		return err
	}
	return os.Rename(f.Name(), to)
}

// inOrder copies an archive with its entries in the order of their names: those of several images come in a random one.
func inOrder(from io.ReadSeeker, to io.Writer) error {
	if _, err := from.Seek(0, io.SeekStart); err != nil {
		return err
	}
	type entry struct {
		header *tar.Header
		at     int64 // where its content begins
	}
	var entries []entry
	for archive := tar.NewReader(from); ; {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		at, err := from.Seek(0, io.SeekCurrent)
		if err != nil {
			return err
		}
		entries = append(entries, entry{header, at})
	}
	slices.SortFunc(entries, func(a, b entry) int { return cmp.Compare(a.header.Name, b.header.Name) })
	archive := tar.NewWriter(to)
	for _, e := range entries {
		if err := archive.WriteHeader(e.header); err != nil {
			return err
		}
		if _, err := from.Seek(e.at, io.SeekStart); err != nil {
			return err
		}
		if _, err := io.CopyN(archive, from, e.header.Size); err != nil {
			return err
		}
	}
	return archive.Close()
}

// named returns the wanted images of a layout by their names.
func named(from string, wanted func(name string) bool) (map[name.Tag]v1.Image, error) {
	index, err := layout.ImageIndexFromPath(from)
	if err != nil {
		return nil, err
	}
	manifest, err := index.IndexManifest()
	if err != nil {
		return nil, err
	}
	images := map[name.Tag]v1.Image{}
	for _, m := range manifest.Manifests {
		if !wanted(m.Annotations[refName]) {
			continue
		}
		tag, err := name.NewTag(m.Annotations[refName], name.StrictValidation)
		if err != nil {
			return nil, err
		}
		if images[tag], err = index.Image(m.Digest); err != nil {
			return nil, err
		}
	}
	if len(images) == 0 {
		return nil, fmt.Errorf("%s has no such image", from)
	}
	return images, nil
}
