// SPDX-License-Identifier: Apache-2.0

// Command ociimages makes the images of a Containerfile without a container engine, as an OCI image layout, and archives of the
// images in a layout, which containerd, podman, docker, crane and skopeo take:
//
//	ociimages -f CONTAINERFILE -layout DIR -tag TAG [-label NAME=TEXT ...] [-archives DIR] BUILDDIR
//	ociimages -layout DIR -archive FILE
//
// The images are called localhost/virtloom-NAME:TAG, the archives in -archives NAME.tar; -archive makes one of all images.
// Everything in them belongs to root and has the time SOURCE_DATE_EPOCH, so that the same files give the same layout and the
// same archives, byte for byte.
package main

import (
	"archive/tar"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// titleLabel is the label that names an image to people.
const titleLabel = "org.opencontainers.image.title"

// refName is the annotation by which a layout names its images.
const refName = "org.opencontainers.image.ref.name"

// options are the command's flags.
type options struct {
	file, layout, tag, dir string
	labels                 labels
	archives, archive      string
	epoch                  time.Time
}

// labels are those that all images get.
type labels map[string]string

// String implements flag.Value.
func (l labels) String() string { return fmt.Sprint(map[string]string(l)) }

// Set implements flag.Value.
func (l labels) Set(text string) error {
	name, value, found := strings.Cut(text, "=")
	if !found || name == "" {
		return errors.New("a label is NAME=TEXT")
	}
	l[name] = value
	return nil
}

func main() {
	o := options{labels: labels{}}
	flag.StringVar(&o.file, "f", "", "the Containerfile")
	flag.StringVar(&o.layout, "layout", "", "the folder to write; must not exist")
	flag.StringVar(&o.tag, "tag", "dev", "the tag of the images")
	flag.Var(o.labels, "label", "a label of all images, NAME=TEXT; may be repeated")
	flag.StringVar(&o.archives, "archives", "", "the folder for an archive of each image")
	flag.StringVar(&o.archive, "archive", "", "the archive to make of all images in the layout")
	flag.Parse()
	o.dir = flag.Arg(0)
	if err := run(o); err != nil {
		fmt.Fprintln(os.Stderr, "ociimages:", err)
		os.Exit(1)
	}
}

func run(o options) error {
	if o.archive != "" && o.layout != "" && o.file == "" && o.dir == "" {
		return archive(o.layout, o.archive, func(string) bool { return true })
	}
	if o.file == "" || o.layout == "" || o.dir == "" {
		return errors.New("usage: ociimages -f CONTAINERFILE -layout DIR -tag TAG BUILDDIR")
	}
	seconds, err := strconv.ParseInt(os.Getenv("SOURCE_DATE_EPOCH"), 10, 64)
	if err != nil {
		return fmt.Errorf("SOURCE_DATE_EPOCH is to be a number of seconds: %w", err)
	}
	o.epoch = time.Unix(seconds, 0).UTC()
	text, err := os.ReadFile(o.file)
	if err != nil {
		return err
	}
	stages, err := parse(string(text))
	if err != nil {
		return fmt.Errorf("%s: %w", o.file, err)
	}
	return o.write(stages)
}

// write makes the layout and the archives.
func (o options) write(stages []stage) error {
	if _, err := os.Stat(o.layout); err == nil {
		return fmt.Errorf("%s exists", o.layout)
	}
	index, err := layout.Write(o.layout, empty.Index)
	if err != nil {
		return err
	}
	for _, s := range stages {
		if err := o.add(index, s); err != nil {
			return fmt.Errorf("image %s: %w", s.name, err)
		}
		if o.archives == "" {
			continue
		}
		if err := archive(o.layout, filepath.Join(o.archives, s.name+".tar"), func(name string) bool { return name == o.name(s) }); err != nil {
			return fmt.Errorf("image %s: %w", s.name, err)
		}
	}
	return nil
}

// name returns the name of an image.
func (o options) name(s stage) string { return "localhost/virtloom-" + s.name + ":" + o.tag }

// add appends an image of one layer.
func (o options) add(index layout.Path, s stage) error {
	archive, err := os.CreateTemp("", "layer-*.tar")
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(archive.Name()) }()
	err = o.pack(archive, filepath.Join(o.dir, s.folder))
	if err := errors.Join(err, archive.Close()); err != nil {
		return err
	}
	layer, err := tarball.LayerFromFile(archive.Name(), tarball.WithMediaType(types.OCILayer))
	if err != nil {
		return err
	}
	maps.Copy(s.config.Labels, o.labels)
	base := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	base, err = mutate.ConfigFile(base, &v1.ConfigFile{
		Architecture: runtime.GOARCH, OS: "linux", Created: v1.Time{Time: o.epoch}, Config: s.config, RootFS: v1.RootFS{Type: "layers"},
	})
	if err != nil {
		return err
	}
	image, err := mutate.Append(base, mutate.Addendum{Layer: layer, History: v1.History{
		Created: v1.Time{Time: o.epoch}, CreatedBy: "COPY " + s.folder + "/ /",
	}})
	if err != nil {
		return err
	}
	return index.AppendImage(image, layout.WithAnnotations(map[string]string{refName: o.name(s)}))
}

// pack writes the archive of a tree, in the order of names.
func (o options) pack(to io.Writer, root string) error {
	archive := tar.NewWriter(to)
	err := filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
		if err != nil || path == root {
			return err
		}
		return o.entry(archive, root, path, e)
	})
	return errors.Join(err, archive.Close())
}

func (o options) entry(archive *tar.Writer, root, path string, e fs.DirEntry) error {
	info, err := e.Info()
	if err != nil {
		return err
	}
	target := ""
	if info.Mode()&fs.ModeSymlink != 0 {
		if target, err = os.Readlink(path); err != nil {
			return err
		}
	}
	made, err := tar.FileInfoHeader(info, target)
	if err != nil {
		return err
	}
	name, err := filepath.Rel(root, path)
	if err != nil {
		return err
	}
	if e.IsDir() {
		name += "/"
	}
	// Nothing of the machine that it is made on: no owner, no times, no device numbers.
	header := &tar.Header{
		Typeflag: made.Typeflag, Name: name, Linkname: target, Size: made.Size, Mode: made.Mode, ModTime: o.epoch, Format: tar.FormatPAX,
	}
	if err := archive.WriteHeader(header); err != nil {
		return err
	}
	switch {
	case info.Mode().IsRegular():
	case e.IsDir() || target != "":
		return nil
	default:
		return fmt.Errorf("%s is neither a file, a folder nor a link", path)
	}
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = io.Copy(archive, f)
	return err
}
