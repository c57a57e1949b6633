// SPDX-License-Identifier: Apache-2.0

package workspace

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/convert"
)

// imageDisks are disks in container images: in a store of the node, or in launcher Pods.
type imageDisks struct {
	images  Images
	volumes Volumes
	pods    Pods
}

// containerDisk puts a writable overlay over the image's disk; what the guest writes is lost when
// the VMI ends.
func (d imageDisks) containerDisk(ctx context.Context, v volume) (convert.DiskSource, error) {
	base, overlay := convert.DiskSource{Path: v.file(".base")}, v.file(".qcow2")
	var err error
	if d.pods != nil || d.volumes != nil && d.images == nil {
		base, err = d.mounted(ctx, v)
	} else {
		err = d.extract(ctx, v, base.Path)
	}
	if err != nil {
		return convert.DiskSource{}, err
	}
	base.ReadOnly = true
	f, err := v.open(ctx, &base)
	if err != nil {
		return convert.DiskSource{}, v.badImage("cannot read the image's disk", err)
	}
	defer f.Close()
	var bytes int64
	if base.Format, bytes, err = imageFormat(f); err != nil {
		return convert.DiskSource{}, v.badImage("cannot read the image's disk", err)
	}
	if err := overlayOf(ctx, overlay, base, bytes); err != nil {
		return convert.DiskSource{}, v.badImage("cannot create an overlay for the image's disk", err)
	}
	return convert.DiskSource{Path: overlay, Format: "qcow2", Backing: &base}, nil
}

// badImage builds the error for a containerDisk.
func (v volume) badImage(reason string, err error) error {
	return v.fault("containerDisk.image", reason, "make the image available on the node, or correct its name", err)
}

// extract extracts the disk from the image of a containerDisk, once.
func (d imageDisks) extract(ctx context.Context, v volume, base string) error {
	path := v.ContainerDisk.Path
	if path == "" && !exists(base) {
		if d.images == nil {
			return v.badImage("no image store is configured on the node", nil)
		}
		files, err := d.images.List(ctx, v.ContainerDisk.Image, containerDiskDir)
		if err != nil {
			return v.badImage("cannot read the image", err)
		}
		if len(files) != 1 {
			return v.badImage(fmt.Sprintf("the image has %d files in %s, want exactly one", len(files), containerDiskDir), nil)
		}
		path = files[0]
	}
	if err := extractOnce(ctx, d.images, v.ContainerDisk.Image, path, base); err != nil {
		return v.badImage("cannot extract the disk from the image", err)
	}
	return nil
}

// mounted returns the disk of a containerDisk image that the launcher Pod holds: as a volume, or in a
// container.
func (d imageDisks) mounted(ctx context.Context, v volume) (convert.DiskSource, error) {
	if src, found, err := d.imageVolume(ctx, v); found {
		if err != nil {
			err = v.badImage("cannot read the image", err)
		}
		return src, err
	}
	if d.volumes == nil {
		return convert.DiskSource{}, v.badImage("its Pod has no volume for the image", domain.ErrNotReady)
	}
	src, err := d.volumes.ContainerDisk(ctx, v.vmi, v.index)
	if err != nil {
		return convert.DiskSource{}, v.fault("containerDisk", "cannot mount the disk of its container", "check the container in the launcher Pod", err)
	}
	return src, nil
}

// imageVolume returns the disk of a containerDisk whose image the kubelet has mounted in the
// launcher; false if the Pod has none, but a container for it.
func (d imageDisks) imageVolume(ctx context.Context, v volume) (convert.DiskSource, bool, error) {
	if d.pods == nil {
		return convert.DiskSource{}, false, nil
	}
	dir := filepath.Join(podImages, "disk_"+strconv.Itoa(v.index))
	image, err := d.pods.Folder(ctx, v.vmi, dir)
	if errors.Is(err, domain.ErrNotReady) {
		return convert.DiskSource{}, false, nil
	}
	if err != nil {
		return convert.DiskSource{}, true, err
	}
	defer image.Close()
	path := strings.TrimPrefix(v.ContainerDisk.Path, "/")
	if path == "" {
		disks, err := openOwn(image, strings.TrimPrefix(containerDiskDir, "/"), unix.O_RDONLY|unix.O_DIRECTORY)
		if err != nil {
			return convert.DiskSource{}, true, err
		}
		defer disks.Close()
		const enough = 2
		names, err := disks.Readdirnames(enough)
		if err != nil && !errors.Is(err, io.EOF) {
			return convert.DiskSource{}, true, err
		}
		if len(names) != 1 {
			return convert.DiskSource{}, true, fmt.Errorf("the image does not have exactly one file in %s; set containerDisk.path: %w", containerDiskDir, domain.ErrInvalid)
		}
		path = filepath.Join(containerDiskDir, names[0])
	}
	return atPod(filepath.Join(dir, path)), true, nil
}
