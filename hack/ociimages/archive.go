// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

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
	f, err := os.CreateTemp(filepath.Dir(to), ".images-*.tar")
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(f.Name()) }()
	err = tarball.MultiWrite(images, f)
	if err := errors.Join(err, f.Chmod(0o644), f.Close()); err != nil { //nolint:gosec // everybody may read it
		return err
	}
	return os.Rename(f.Name(), to)
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
