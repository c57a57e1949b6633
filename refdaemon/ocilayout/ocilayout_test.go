// SPDX-License-Identifier: Apache-2.0

package ocilayout_test

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"github.com/virtloom/virtloom/refdaemon/ocilayout"
)

const name = "example.test/disk:1"

// entry is one member of a layer: a file with content, or a link to target.
type entry struct {
	name, content, target string
	kind                  byte
}

func file(name, content string) entry { return entry{name: name, content: content, kind: tar.TypeReg} }
func dir(name string) entry           { return entry{name: name, kind: tar.TypeDir} }

// image puts layers, the lowest first, on top of each other.
func image(layers ...[]entry) (v1.Image, error) {
	img := empty.Image
	for _, entries := range layers {
		var b bytes.Buffer
		w := tar.NewWriter(&b)
		for _, e := range entries {
			h := &tar.Header{Name: e.name, Typeflag: e.kind, Size: int64(len(e.content)), Linkname: e.target, Mode: 0o644}
			if err := w.WriteHeader(h); err != nil {
				return nil, err
			}
			if _, err := io.WriteString(w, e.content); err != nil {
				return nil, err
			}
		}
		if err := w.Close(); err != nil {
			return nil, err
		}
		layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(b.Bytes())), nil })
		if err != nil {
			return nil, err
		}
		if img, err = mutate.AppendLayers(img, layer); err != nil {
			return nil, err
		}
	}
	return img, nil
}

// store makes a layout with one image, called name, in dir.
func store(dir string, layers ...[]entry) (ocilayout.Store, v1.Image, error) {
	img, err := image(layers...)
	if err != nil {
		return ocilayout.Store{}, nil, err
	}
	p, err := layout.Write(dir, empty.Index)
	if err != nil {
		return ocilayout.Store{}, nil, err
	}
	err = p.AppendImage(img, layout.WithAnnotations(map[string]string{"org.opencontainers.image.ref.name": name}))
	return ocilayout.Store{Dir: dir}, img, err
}

func newStore(t *testing.T, layers ...[]entry) (ocilayout.Store, v1.Image) {
	t.Helper()
	s, img, err := store(filepath.Join(t.TempDir(), "layout"), layers...)
	if err != nil {
		t.Fatal(err)
	}
	return s, img
}

func TestExtract_AppliesLayers(t *testing.T) {
	s, _ := newStore(t,
		[]entry{dir("disk/"), file("disk/disk.img", "old"), file("./boot/vmlinuz", "kernel"), file("boot/gone", "x"), file("opaque/low", "x"), file("tree/a", "x")},
		[]entry{file("disk/disk.img", "new"), file("boot/.wh.gone", ""), file("opaque/.wh..wh..opq", ""), file("opaque/high", "y"), file(".wh.tree", "")},
		[]entry{{name: "boot/link", target: "vmlinuz", kind: tar.TypeSymlink}, {name: "boot/hard", target: "boot/vmlinuz", kind: tar.TypeLink}},
	)
	for path, tt := range map[string]struct {
		want    string
		missing bool
		says    string
	}{
		"/disk/disk.img":          {want: "new"},
		"disk/disk.img":           {want: "new"},
		"/disk/../disk//disk.img": {want: "new"},
		"../../disk/disk.img":     {want: "new"},
		"/boot/vmlinuz":           {want: "kernel"},
		"/opaque/high":            {want: "y"},
		"/boot/gone":              {missing: true},
		"/opaque/low":             {missing: true},
		"/tree/a":                 {missing: true},
		"/nothing":                {missing: true},
		"":                        {missing: true},
		"/disk":                   {says: "not a regular file"},
		"/boot/link":              {says: `a link to "vmlinuz"; specify the file itself`},
		"/boot/hard":              {says: `a link to "boot/vmlinuz"; specify the file itself`},
	} {
		t.Run(path, func(t *testing.T) {
			dst := filepath.Join(t.TempDir(), "file")
			err := s.Extract(t.Context(), name, path, dst)
			switch {
			case tt.missing:
				if !errors.Is(err, fs.ErrNotExist) {
					t.Errorf("error %v, want fs.ErrNotExist", err)
				}
			case tt.says != "":
				if err == nil || !strings.Contains(err.Error(), tt.says) || !strings.Contains(err.Error(), name) {
					t.Errorf("error %v, want one that names the image and says %q", err, tt.says)
				}
			case err != nil:
				t.Error(err)
			}
			got, _ := os.ReadFile(dst)
			if string(got) != tt.want {
				t.Errorf("content %q, want %q", got, tt.want)
			}
			onlyFile(t, dst, tt.want != "")
		})
	}
}

// onlyFile fails if there is anything but, perhaps, the file in its directory.
func onlyFile(t *testing.T, dst string, there bool) {
	t.Helper()
	entries, err := os.ReadDir(filepath.Dir(dst))
	if err != nil {
		t.Fatal(err)
	}
	var got, want []string
	for _, e := range entries {
		got = append(got, e.Name())
	}
	if there {
		want = []string{filepath.Base(dst)}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("files (-want +got):\n%s", diff)
	}
}

func TestStore_NameAndDigest(t *testing.T) {
	s, img := newStore(t, []entry{file("disk.img", "x")})
	digest, err := img.Digest()
	if err != nil {
		t.Fatal(err)
	}
	other := "sha256:" + strings.Repeat("0", 64)
	for image, known := range map[string]bool{
		name:                                   true,
		"example.test/disk@" + digest.String(): true,
		"example.test/disk:2":                  false,
		"example.test/disk":                    false,
		"example.test/disk@" + other:           false,
		"":                                     false,
	} {
		err := s.Extract(t.Context(), image, "/disk.img", filepath.Join(t.TempDir(), "f"))
		if known && err != nil || !known && !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%q: %v", image, err)
		}
	}
}

func TestList_Files(t *testing.T) {
	s, _ := newStore(t, []entry{
		dir("disk/"), file("disk/a.img", ""), file("disk/sub/b.img", ""), file("c.img", ""),
		{name: "disk/link", target: "a.img", kind: tar.TypeSymlink},
	})
	for dir, want := range map[string][]string{"/disk": {"/disk/a.img"}, "disk/": {"/disk/a.img"}, "/": {"/c.img"}, "/none": nil} {
		got, err := s.List(t.Context(), name, dir)
		if diff := cmp.Diff(want, got); diff != "" || err != nil {
			t.Errorf("%s: %v (-want +got):\n%s", dir, err, diff)
		}
	}
	if _, err := s.List(t.Context(), "unknown", "/"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("unknown image: error %v, want fs.ErrNotExist", err)
	}
}

func TestExtract_PathTraversal(t *testing.T) {
	for _, evil := range []string{"../evil", "a/../../evil", "/../evil"} {
		s, _ := newStore(t, []entry{file(evil, "evil"), file("disk.img", "x")})
		outside := t.TempDir()
		dst := filepath.Join(outside, "in", "disk.img")
		if err := os.Mkdir(filepath.Dir(dst), 0o755); err != nil {
			t.Fatal(err)
		}
		// Whether the layer is refused or its name is taken as one of the image is
		// the library's choice; nothing may be written anywhere else.
		_ = s.Extract(t.Context(), name, "/disk.img", dst)
		entries, err := os.ReadDir(outside)
		if err != nil || len(entries) != 1 {
			t.Errorf("%q: %v in the directory above, %v", evil, entries, err)
		}
	}
}

func TestExtract_Atomic(t *testing.T) {
	s, _ := newStore(t, []entry{file("disk.img", "new")})
	dst := filepath.Join(t.TempDir(), "disk.img")
	for _, left := range []string{dst, dst + ".new"} { // of before, and of a crash
		if err := os.WriteFile(left, []byte("older and longer"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Extract(t.Context(), name, "/nothing", dst); err == nil {
		t.Fatal("a missing file was extracted")
	}
	if got, _ := os.ReadFile(dst); string(got) != "older and longer" {
		t.Errorf("a failed call left %q", got)
	}
	if err := s.Extract(t.Context(), name, "/disk.img", dst); err != nil {
		t.Fatal(err)
	}
	if got, _ := os.ReadFile(dst); string(got) != "new" {
		t.Errorf("content %q, want new", got)
	}
	onlyFile(t, dst, true)
}

func TestExtract_CorruptLayout(t *testing.T) {
	big := strings.Repeat("0123456789abcdef", 1<<16)
	for what, harm := range map[string]func(dir string, img v1.Image) error{
		"no directory": func(dir string, _ v1.Image) error { return os.RemoveAll(dir) },
		"no index":     func(dir string, _ v1.Image) error { return os.Remove(filepath.Join(dir, "index.json")) },
		"a broken index": func(dir string, _ v1.Image) error {
			return os.WriteFile(filepath.Join(dir, "index.json"), []byte("{"), 0o600)
		},
		"a cut layer":     func(dir string, img v1.Image) error { return cut(dir, img, 100) },
		"an empty layer":  func(dir string, img v1.Image) error { return cut(dir, img, 0) },
		"a missing layer": func(dir string, img v1.Image) error { return cut(dir, img, -1) },
		"a missing manifest": func(dir string, img v1.Image) error {
			d, err := img.Digest()
			return errors.Join(err, os.Remove(blob(dir, d)))
		},
	} {
		t.Run(what, func(t *testing.T) {
			s, img := newStore(t, []entry{file("disk.img", big)})
			if err := harm(s.Dir, img); err != nil {
				t.Fatal(err)
			}
			dst := filepath.Join(t.TempDir(), "disk.img")
			if err := s.Extract(t.Context(), name, "/disk.img", dst); err == nil {
				t.Error("no error")
			}
			onlyFile(t, dst, false)
		})
	}
}

func blob(dir string, h v1.Hash) string { return filepath.Join(dir, "blobs", h.Algorithm, h.Hex) }

// cut shortens the first layer's blob to a size, or removes it.
func cut(dir string, img v1.Image, size int64) error {
	layers, err := img.Layers()
	if err != nil {
		return err
	}
	d, err := layers[0].Digest()
	if err != nil {
		return err
	}
	if size < 0 {
		return os.Remove(blob(dir, d))
	}
	return os.Truncate(blob(dir, d), size)
}

func TestExtract_PlatformIndex(t *testing.T) {
	s, img := newStore(t)
	p, err := layout.FromPath(s.Dir)
	if err != nil {
		t.Fatal(err)
	}
	index := mutate.AppendManifests(empty.Index, mutate.IndexAddendum{Add: img})
	err = p.AppendIndex(index, layout.WithAnnotations(map[string]string{"org.opencontainers.image.ref.name": "example.test/many:1"}))
	if err != nil {
		t.Fatal(err)
	}
	_, err = s.List(t.Context(), "example.test/many:1", "/")
	if err == nil || !strings.Contains(err.Error(), "several platforms") {
		t.Errorf("error %v, want one that names platforms", err)
	}
}

func TestExtract_Canceled(t *testing.T) {
	s, _ := newStore(t, []entry{file("disk.img", "x")})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	dst := filepath.Join(t.TempDir(), "disk.img")
	if err := s.Extract(ctx, name, "/disk.img", dst); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v, want context.Canceled", err)
	}
	onlyFile(t, dst, false)
}

// countdown is a context that ends after being asked so many times.
type countdown struct {
	context.Context
	left *int
}

func (c countdown) Err() error {
	if *c.left--; *c.left < 0 {
		return context.Canceled
	}
	return nil
}

func TestExtract_CanceledHalfway(t *testing.T) {
	s, _ := newStore(t, []entry{file("disk.img", strings.Repeat("x", 1<<20))})
	left := 3
	dst := filepath.Join(t.TempDir(), "disk.img")
	if err := s.Extract(countdown{t.Context(), &left}, name, "/disk.img", dst); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v, want context.Canceled", err)
	}
	onlyFile(t, dst, false)
}

// A disk is taken out of a container image that was copied to the node.
func ExampleStore_Extract() {
	dir, err := os.MkdirTemp("", "example-")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = os.RemoveAll(dir) }()
	// Usually: skopeo copy docker://example.test/disk:1 oci:layout:example.test/disk:1
	if _, _, err := store(filepath.Join(dir, "layout"), []entry{file("disk/disk.img", "a bootable disk")}); err != nil {
		fmt.Println(err)
		return
	}

	ctx := context.Background()
	images := ocilayout.Store{Dir: filepath.Join(dir, "layout")}
	files, err := images.List(ctx, "example.test/disk:1", "/disk")
	fmt.Println(files, err)

	dst := filepath.Join(dir, "guest.img")
	if err := images.Extract(ctx, "example.test/disk:1", files[0], dst); err != nil {
		fmt.Println(err)
		return
	}
	content, err := os.ReadFile(dst)
	fmt.Println(string(content), err)
	// Output:
	// [/disk/disk.img] <nil>
	// a bootable disk <nil>
}
