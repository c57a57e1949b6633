// SPDX-License-Identifier: Apache-2.0

package rig

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path"
	"slices"
	"strings"
)

// Image is a small container image for this machine.
type Image struct {
	// Name with a tag, as Pods call it: "localhost/pause:1".
	Name string
	// Entrypoint is what its containers run.
	Entrypoint []string
	// Files are the paths of programs in the image, each with where it comes from.
	Files map[string]string
	// Links are the paths of symbolic links in the image, each with its target.
	Links map[string]string
}

// imageConfig is the part of an image's configuration that is used here.
type imageConfig struct {
	Architecture string `json:"architecture"`
	OS           string `json:"os"`
	Config       struct {
		Entrypoint []string
		Env        []string
	} `json:"config"`
	RootFS struct {
		Type    string   `json:"type"`
		DiffIDs []string `json:"diff_ids"`
	} `json:"rootfs"`
}

// WriteImage writes an archive of an image as "docker save" does, for [KubeletNode.LoadImages].
func WriteImage(archive string, image Image) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("write image %s: %w", image.Name, err)
		}
	}()
	layer, err := image.layer()
	if err != nil {
		return err
	}
	config := imageConfig{Architecture: "amd64", OS: "linux"}
	config.Config.Entrypoint = image.Entrypoint
	config.Config.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"}
	config.RootFS.Type, config.RootFS.DiffIDs = "layers", []string{fmt.Sprintf("sha256:%x", sha256.Sum256(layer))}
	manifest := []map[string]any{{"Config": "config.json", "RepoTags": []string{image.Name}, "Layers": []string{"layer.tar"}}}
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, part := range []struct {
		name    string
		content any
	}{{"manifest.json", manifest}, {"config.json", config}, {"layer.tar", layer}} {
		content, raw := part.content.([]byte)
		if !raw {
			if content, err = json.Marshal(part.content); err != nil {
				return err
			}
		}
		if err := addFile(w, part.name, 0o644, content); err != nil {
			return err
		}
	}
	if err := w.Close(); err != nil {
		return err
	}
	return os.WriteFile(archive, out.Bytes(), 0o644)
}

// layer is the one layer of the image.
func (i Image) layer() ([]byte, error) {
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, folder := range i.folders() {
		if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: folder + "/", Mode: 0o755}); err != nil {
			return nil, err
		}
	}
	for _, name := range slices.Sorted(maps.Keys(i.Files)) {
		content, err := os.ReadFile(i.Files[name])
		if err != nil {
			return nil, err
		}
		if err := addFile(w, strings.TrimPrefix(name, "/"), 0o755, content); err != nil {
			return nil, err
		}
	}
	for _, name := range slices.Sorted(maps.Keys(i.Links)) {
		h := &tar.Header{Typeflag: tar.TypeSymlink, Name: strings.TrimPrefix(name, "/"), Linkname: i.Links[name], Mode: 0o777}
		if err := w.WriteHeader(h); err != nil {
			return nil, err
		}
	}
	err := w.Close()
	return out.Bytes(), err
}

// folders are those that have files, each after the one that it is in.
func (i Image) folders() []string {
	found := map[string]bool{}
	for _, names := range []map[string]string{i.Files, i.Links} {
		for name := range names {
			for dir := path.Dir(strings.TrimPrefix(name, "/")); dir != "."; dir = path.Dir(dir) {
				found[dir] = true
			}
		}
	}
	return slices.Sorted(maps.Keys(found))
}

func addFile(w *tar.Writer, name string, mode int64, content []byte) error {
	if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: mode, Size: int64(len(content))}); err != nil {
		return err
	}
	_, err := w.Write(content)
	return err
}
