// SPDX-License-Identifier: Apache-2.0

// Package ocilayout reads files out of container images in a local OCI image
// layout directory. It replaces a container runtime on a node without one: the
// operator of the node provides the images.
package ocilayout

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
)

// refName is the annotation with the name of an image in a layout
// (OCI image spec, annotations).
const refName = "org.opencontainers.image.ref.name"

// Store gives access to the images of one layout directory. An image is found
// by its full name in the annotation org.opencontainers.image.ref.name of the
// layout's index, or by the digest at the end of its name. Safe for concurrent
// use.
type Store struct {
	// Dir is the layout directory.
	Dir string
}

// Extract writes the file at path inside the image to dst, durably and atomically.
// An unknown image or path is an error that wraps fs.ErrNotExist. Links are not
// followed. Concurrent calls must not write to the same dst.
func (s Store) Extract(ctx context.Context, image, name, dst string) error {
	want, found := clean(name), false
	err := s.walk(ctx, image, func(h *tar.Header, r io.Reader) (bool, error) {
		if clean(h.Name) != want {
			return false, nil
		}
		if h.Typeflag != tar.TypeReg {
			return false, notAFile(h, want, image)
		}
		found = true
		return true, replace(dst, contextReader{ctx, r})
	})
	if err == nil && !found {
		err = fmt.Errorf("ocilayout: %s in image %s: %w", want, image, fs.ErrNotExist)
	}
	return err
}

// notAFile returns an error that names the type of a non-regular file.
func notAFile(h *tar.Header, name, image string) error {
	if h.Typeflag == tar.TypeSymlink || h.Typeflag == tar.TypeLink {
		return fmt.Errorf("ocilayout: %s in image %s is a link to %q; specify the file itself", name, image, h.Linkname)
	}
	return fmt.Errorf("ocilayout: %s in image %s is not a regular file", name, image)
}

// contextReader reads until its context ends.
type contextReader struct {
	ctx context.Context
	io.Reader
}

// Read implements io.Reader.
func (r contextReader) Read(p []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, err
	}
	return r.Reader.Read(p)
}

// List returns the regular files directly in the directory dir of the image, as
// absolute paths. A missing directory has none. An unknown image is an error that
// wraps fs.ErrNotExist.
func (s Store) List(ctx context.Context, image, dir string) ([]string, error) {
	var files []string
	err := s.walk(ctx, image, func(h *tar.Header, _ io.Reader) (bool, error) {
		if h.Typeflag == tar.TypeReg && path.Dir(clean(h.Name)) == clean(dir) {
			files = append(files, clean(h.Name))
		}
		return false, nil
	})
	return files, err
}

// walk visits every entry of the image's file system, layers applied, until visit
// returns true or an error.
func (s Store) walk(ctx context.Context, image string, visit func(*tar.Header, io.Reader) (bool, error)) (err error) {
	img, err := s.find(image)
	if err != nil {
		return err
	}
	content := mutate.Extract(img)
	defer func() { err = errors.Join(err, content.Close()) }()
	for r := tar.NewReader(content); ; {
		if err := ctx.Err(); err != nil {
			return err
		}
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("ocilayout: read image %s: %w", image, err)
		}
		if done, err := visit(h, r); done || err != nil {
			return err
		}
	}
}

// find returns the image from the layout's index.
func (s Store) find(image string) (v1.Image, error) {
	root, err := layout.ImageIndexFromPath(s.Dir)
	if err != nil {
		return nil, fmt.Errorf("ocilayout: open the image layout: %w", err)
	}
	manifest, err := root.IndexManifest()
	if err != nil {
		return nil, fmt.Errorf("ocilayout: read the image layout: %w", err)
	}
	_, digest, _ := strings.Cut(image, "@")
	for _, d := range manifest.Manifests {
		if d.Annotations[refName] != image && (digest == "" || d.Digest.String() != digest) {
			continue
		}
		if d.MediaType.IsIndex() {
			return nil, fmt.Errorf("ocilayout: image %s is an index of several platforms; copy the image of this node's platform into the layout", image)
		}
		img, err := root.Image(d.Digest)
		if err != nil {
			return nil, fmt.Errorf("ocilayout: read image %s: %w", image, err)
		}
		return img, nil
	}
	return nil, fmt.Errorf("ocilayout: image %s: %w", image, fs.ErrNotExist)
}

// replace writes a temporary file beside dst and renames it when complete. The
// temporary name is always the same, so that the leftover of a crash is reused.
func replace(dst string, r io.Reader) (err error) {
	f, err := os.Create(dst + ".new")
	if err != nil {
		return fmt.Errorf("ocilayout: %w", err)
	}
	defer func() {
		if err != nil {
			err = fmt.Errorf("ocilayout: write %s: %w", filepath.Base(dst), err)
			_ = os.Remove(f.Name())
		}
	}()
	if _, err = io.Copy(f, r); err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), dst)
}

func clean(name string) string { return path.Clean("/" + name) }
