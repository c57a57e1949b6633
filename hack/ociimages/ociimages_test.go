// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/validate"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestContainerfile_Parse(t *testing.T) {
	text, err := os.ReadFile("../../refdaemon/Containerfile")
	must(t, err)
	got, err := parse(string(text))
	must(t, err)
	entry := []string{"/usr/bin/refdaemon"}
	want := []stage{
		{"controller", "controller", v1.Config{User: "65532:65532", Entrypoint: entry, Cmd: []string{"controller", "-h"}}},
		{"node", "node", v1.Config{User: "0:0", Env: []string{"PATH=/usr/bin:/bin"}, Entrypoint: entry, Cmd: []string{"node", "-h"}}},
		{"launcher", "launcher", v1.Config{
			User: "107:107", Env: []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"}, Entrypoint: []string{"/usr/bin/virt-launcher-monitor"}, Cmd: []string{"-h"},
		}},
	}
	for i, s := range got {
		for _, label := range []string{"title", "description", "source", "licenses"} {
			if s.config.Labels["org.opencontainers.image."+label] == "" {
				t.Errorf("image %s has no label %s", s.name, label)
			}
		}
		got[i].config.Labels = nil
	}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(stage{})); diff != "" {
		t.Error(diff)
	}
}

func TestContainerfile_Invalid(t *testing.T) {
	const good = "FROM scratch AS a\nCOPY a/ /\nUSER 1:1\nENTRYPOINT [\"/a\"]\nLABEL org.opencontainers.image.title=\"a\"\n"
	for name, tt := range map[string]struct{ text, err string }{
		"all is well":          {good, ""},
		"a base":               {"FROM debian AS a", "line 1: an image begins with"},
		"no name":              {"FROM scratch", "line 1: an image begins with"},
		"nothing":              {"# nothing", "no image"},
		"before an image":      {"USER 1", "line 1: FROM comes first"},
		"a command to run":     {good + "RUN make", "line 6: RUN is not known here"},
		"two folders":          {good + "COPY b/ /", "line 6: an image is one folder"},
		"from elsewhere":       {"FROM scratch AS a\nCOPY ../a/ /", "line 2: an image is one folder"},
		"a part":               {"FROM scratch AS a\nCOPY a /b", "line 2: an image is one folder"},
		"a shell":              {good + "CMD a b", "line 6: a command is a list of words"},
		"a variable to expand": {good + "ENV A=$B", "line 6: a variable is plain"},
		"a label of no text":   {good + "LABEL a=b", "line 6: a label is one plain text"},
		"two labels":           {good + `LABEL a="b" c="d"`, "line 6: a label is one plain text"},
		"a label to expand":    {good + `LABEL a="$b"`, "line 6: a label is one plain text"},
		"a label of no name":   {good + `LABEL ="b"`, "line 6: a label is one plain text"},
		"no title":             {strings.Replace(good, "title", "name", 1), "image a lacks the label"},
		"who runs it":          {strings.Replace(good, "USER 1:1\n", "", 1), "image a lacks one of"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := parse(tt.text)
			if tt.err == "" && err != nil || tt.err != "" && (err == nil || !strings.Contains(err.Error(), tt.err)) {
				t.Errorf("error %v, want %q", err, tt.err)
			}
		})
	}
}

// tree makes a folder with one image, whose files have any owner and that time.
func tree(t *testing.T, when time.Time) options {
	t.Helper()
	dir := t.TempDir()
	must(t, os.WriteFile(filepath.Join(dir, "Containerfile"), []byte("FROM scratch AS a\nCOPY a/ /\nUSER 1:1\nENTRYPOINT [\"/bin/a\"]\nLABEL org.opencontainers.image.title=\"A\"\n"), 0o600))
	must(t, os.MkdirAll(filepath.Join(dir, "a", "bin"), 0o755))
	must(t, os.WriteFile(filepath.Join(dir, "a", "bin", "a"), []byte("program"), 0o755))
	must(t, os.Symlink("bin", filepath.Join(dir, "a", "sbin")))
	must(t, os.Chtimes(filepath.Join(dir, "a", "bin", "a"), when, when))
	return options{file: filepath.Join(dir, "Containerfile"), layout: filepath.Join(dir, "oci"), tag: "1", dir: dir, archives: dir, labels: labels{"revision": "r"}}
}

func TestImage_Reproducible(t *testing.T) {
	t.Setenv("SOURCE_DATE_EPOCH", "1700000000")
	var indexes, archives [2][]byte
	for i := range indexes {
		o := tree(t, time.Unix(int64(i), 0))
		must(t, run(o))
		var err error
		indexes[i], err = os.ReadFile(filepath.Join(o.layout, "index.json"))
		must(t, err)
		archives[i], err = os.ReadFile(filepath.Join(o.dir, "a.tar"))
		must(t, err)
	}
	if !bytes.Equal(archives[0], archives[1]) {
		t.Error("the archives differ")
	}
	if !bytes.Equal(indexes[0], indexes[1]) {
		t.Errorf("%s\n%s", indexes[0], indexes[1])
	}
}

func TestImage_MatchesFolder(t *testing.T) {
	t.Setenv("SOURCE_DATE_EPOCH", "1700000000")
	o := tree(t, time.Unix(1, 0))
	must(t, run(o))
	index, err := layout.ImageIndexFromPath(o.layout)
	must(t, err)
	manifest, err := index.IndexManifest()
	must(t, err)
	if n := len(manifest.Manifests); n != 1 || manifest.Manifests[0].Annotations[refName] != "localhost/virtloom-a:1" {
		t.Fatalf("%d images: %+v", n, manifest.Manifests)
	}
	must(t, validate.Index(index)) // as "crane validate" does
	image, err := index.Image(manifest.Manifests[0].Digest)
	must(t, err)
	config, err := image.ConfigFile()
	must(t, err)
	if l := config.Config.Labels; l["revision"] != "r" || l[titleLabel] != "A" {
		t.Errorf("labels %v", l)
	}
	if c := config.Config; c.User != "1:1" || !slices.Equal(c.Entrypoint, []string{"/bin/a"}) || config.Created.Unix() != 1700000000 {
		t.Errorf("%+v", config)
	}
	layers, err := image.Layers()
	must(t, err)
	content, err := layers[0].Uncompressed()
	must(t, err)
	var got []string
	for r := tar.NewReader(content); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		must(t, err)
		got = append(got, h.Name+h.Linkname)
		if h.Uid != 0 || h.Gid != 0 || h.Uname != "" || h.ModTime.Unix() != 1700000000 {
			t.Errorf("%+v depends on the machine", h)
		}
	}
	if want := []string{"bin/", "bin/a", "sbinbin"}; len(layers) != 1 || !slices.Equal(got, want) {
		t.Errorf("%d layers, the first has %q, want %q", len(layers), got, want)
	}
}

// TestArchive_SeveralImages: the order of the images in an archive is always the same.
func TestArchive_SeveralImages(t *testing.T) {
	t.Setenv("SOURCE_DATE_EPOCH", "1700000000")
	o := tree(t, time.Unix(1, 0))
	text, err := os.ReadFile(o.file)
	must(t, err)
	for _, name := range []string{"b", "c", "d"} {
		must(t, os.Mkdir(filepath.Join(o.dir, name), 0o755))
		must(t, os.WriteFile(filepath.Join(o.dir, name, "file"), []byte(name), 0o600))
		text = append(text, "FROM scratch AS "+name+"\nCOPY "+name+"/ /\nUSER 1:1\nENTRYPOINT [\"/file\"]\nLABEL org.opencontainers.image.title=\"A\"\n"...)
	}
	must(t, os.WriteFile(o.file, text, 0o600))
	must(t, run(o))
	var first []byte
	for range 8 {
		all := filepath.Join(o.dir, "all.tar")
		must(t, run(options{layout: o.layout, archive: all}))
		now, err := os.ReadFile(all)
		must(t, err)
		if first == nil {
			first = now
		}
		if !bytes.Equal(first, now) {
			t.Fatal("the archives differ")
		}
	}
}

// TestArchive_MatchesLayout: one of an image, and one of all images of a layout.
func TestArchive_MatchesLayout(t *testing.T) {
	t.Setenv("SOURCE_DATE_EPOCH", "1700000000")
	o := tree(t, time.Unix(1, 0))
	must(t, run(o))
	all := filepath.Join(o.dir, "all.tar")
	must(t, run(options{layout: o.layout, archive: all}))
	index, err := layout.ImageIndexFromPath(o.layout)
	must(t, err)
	manifest, err := index.IndexManifest()
	must(t, err)
	want, err := index.Image(manifest.Manifests[0].Digest)
	must(t, err)
	for _, path := range []string{filepath.Join(o.dir, "a.tar"), all} {
		tag, err := name.NewTag("localhost/virtloom-a:1")
		must(t, err)
		got, err := tarball.ImageFromPath(path, &tag)
		must(t, err)
		must(t, validate.Image(got))
		wantConfig, err := want.ConfigName()
		must(t, err)
		if gotConfig, err := got.ConfigName(); err != nil || gotConfig != wantConfig {
			t.Errorf("%s has %s, %v, want %s", path, gotConfig, err, wantConfig)
		}
	}
}

func TestArchive_Errors(t *testing.T) {
	for dir, want := range map[string]string{filepath.Join(t.TempDir(), "missing"): "no such file", emptyLayout(t): "has no such image"} {
		to := filepath.Join(t.TempDir(), "all.tar")
		if err := run(options{layout: dir, archive: to}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want one with %q", err, want)
		}
		if left, err := os.ReadDir(filepath.Dir(to)); err != nil || len(left) > 0 {
			t.Errorf("left is %v, %v", left, err)
		}
	}
}

func emptyLayout(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	_, err := layout.Write(dir, empty.Index)
	must(t, err)
	return dir
}

func TestImage_Errors(t *testing.T) {
	for name, tt := range map[string]struct {
		epoch string
		with  func(t *testing.T, o *options)
		err   string
	}{
		"no time":           {"", func(*testing.T, *options) {}, "SOURCE_DATE_EPOCH"},
		"no folder to make": {"1", func(_ *testing.T, o *options) { o.layout = "" }, "usage"},
		"no Containerfile":  {"1", func(_ *testing.T, o *options) { o.file += "x" }, "no such file"},
		"made before":       {"1", func(t *testing.T, o *options) { must(t, os.Mkdir(o.layout, 0o755)) }, "exists"},
		"nothing to copy":   {"1", func(t *testing.T, o *options) { must(t, os.RemoveAll(filepath.Join(o.dir, "a"))) }, "image a: "},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("SOURCE_DATE_EPOCH", tt.epoch)
			o := tree(t, time.Unix(1, 0))
			tt.with(t, &o)
			if err := run(o); err == nil || !strings.Contains(err.Error(), tt.err) {
				t.Errorf("error %v, want one with %q", err, tt.err)
			}
		})
	}
}
