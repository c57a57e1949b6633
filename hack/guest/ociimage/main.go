// SPDX-License-Identifier: Apache-2.0

// Command ociimage writes the images of the demo and the tests into an OCI image layout, which
// stands in for a registry:
//
//	virtloom.test/guest-kernel:1  /boot/vmlinux, /boot/initrd and /boot/initrd-agent, for kernelBoot
//	virtloom.test/guest-disk:1    /disk/disk.img, for a containerDisk
//	virtloom.test/guest-boot:1    /disk/disk.img, a containerDisk from which the guest starts
//
// The same input gives the same layout, byte for byte.
package main

import (
	"archive/tar"
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

const (
	// refName is the annotation by which a layout names its images.
	refName = "org.opencontainers.image.ref.name"

	kernelImage = "virtloom.test/guest-kernel:1"
	diskImage   = "virtloom.test/guest-disk:1"
	bootImage   = "virtloom.test/guest-boot:1"

	// diskSize is that of the containerDisk, a raw image that is empty but for its first line.
	diskSize   = 16 << 20
	diskMarker = "virtloom guest-disk 1\n"

	// owner is KubeVirt's user qemu, to whom the files of a containerDisk belong.
	owner = 107
)

// entry is a file of an image.
type entry struct {
	name string
	data []byte
}

func main() {
	kernel := flag.String("kernel", "", "the kernel")
	initrd := flag.String("initrd", "", "the initramfs")
	disk := flag.String("disk", "", "the disk from which the guest starts")
	dir := flag.String("layout", "", "the folder to write; must not exist")
	flag.Parse()
	if err := run(*kernel, *initrd, *disk, *dir); err != nil {
		fmt.Fprintln(os.Stderr, "ociimage:", err)
		os.Exit(1)
	}
}

func run(kernel, initrd, disk, dir string) error {
	if dir == "" {
		return errors.New("-layout is required")
	}
	var boot []entry
	for _, f := range []struct{ name, source string }{
		{"boot/initrd", initrd}, {"boot/initrd-agent", initrd + "-agent"}, {"boot/vmlinux", kernel},
	} {
		data, err := os.ReadFile(f.source)
		if err != nil {
			return err
		}
		boot = append(boot, entry{f.name, data})
	}
	started, err := os.ReadFile(disk)
	if err != nil {
		return err
	}
	marked := make([]byte, diskSize)
	copy(marked, diskMarker)
	index, err := layout.Write(dir, empty.Index)
	if err != nil {
		return fmt.Errorf("write %s: %w", dir, err)
	}
	if err := add(index, kernelImage, boot); err != nil {
		return err
	}
	if err := add(index, diskImage, []entry{{"disk/disk.img", marked}}); err != nil {
		return err
	}
	return add(index, bootImage, []entry{{"disk/disk.img", started}})
}

// add appends an image of one layer with the given files.
func add(index layout.Path, name string, files []entry) error {
	archive, err := pack(files)
	if err != nil {
		return fmt.Errorf("image %s: %w", name, err)
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(archive)), nil
	}, tarball.WithMediaType(types.OCILayer))
	if err != nil {
		return fmt.Errorf("image %s: %w", name, err)
	}
	base := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	base, err = mutate.ConfigFile(base, &v1.ConfigFile{Architecture: "amd64", OS: "linux", RootFS: v1.RootFS{Type: "layers"}})
	if err != nil {
		return fmt.Errorf("image %s: %w", name, err)
	}
	image, err := mutate.AppendLayers(base, layer)
	if err != nil {
		return fmt.Errorf("image %s: %w", name, err)
	}
	named := layout.WithAnnotations(map[string]string{refName: name})
	if err := index.AppendImage(image, named); err != nil {
		return fmt.Errorf("image %s: %w", name, err)
	}
	return nil
}

// pack makes the archive of a layer: the files and their folders, all of one fixed time.
func pack(files []entry) ([]byte, error) {
	var out bytes.Buffer
	archive := tar.NewWriter(&out)
	epoch := time.Unix(0, 0)
	folders := map[string]bool{}
	for _, f := range files {
		if folder := path.Dir(f.name) + "/"; !folders[folder] {
			folders[folder] = true
			header := &tar.Header{
				Typeflag: tar.TypeDir, Name: folder, Mode: 0o755, Uid: owner, Gid: owner, ModTime: epoch, Format: tar.FormatPAX,
			}
			if err := archive.WriteHeader(header); err != nil {
				return nil, err
			}
		}
		header := &tar.Header{
			Typeflag: tar.TypeReg, Name: f.name, Size: int64(len(f.data)),
			Mode: 0o644, Uid: owner, Gid: owner, ModTime: epoch, Format: tar.FormatPAX,
		}
		if err := archive.WriteHeader(header); err != nil {
			return nil, err
		}
		if _, err := archive.Write(f.data); err != nil {
			return nil, err
		}
	}
	if err := archive.Close(); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}
