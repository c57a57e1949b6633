// SPDX-License-Identifier: Apache-2.0

package workspace

import (
	"context"
	"fmt"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/convert"
)

// containerDisk puts a writable overlay over the image's disk; what the guest writes is lost when
// the VMI ends.
func (w *Workspace) containerDisk(ctx context.Context, v volume) (convert.DiskSource, error) {
	base, overlay := convert.DiskSource{Path: v.file(".base")}, v.file(".qcow2")
	var err error
	if w.Pods != nil || w.Volumes != nil && w.Images == nil {
		base, err = w.mounted(ctx, v)
	} else {
		err = w.extractDisk(ctx, v, base.Path)
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

// extractDisk extracts the disk from the image of a containerDisk, once.
func (w *Workspace) extractDisk(ctx context.Context, v volume, base string) error {
	path := v.ContainerDisk.Path
	if path == "" && !exists(base) {
		if w.Images == nil {
			return v.badImage("no image store is configured on the node", nil)
		}
		files, err := w.Images.List(ctx, v.ContainerDisk.Image, containerDiskDir)
		if err != nil {
			return v.badImage("cannot read the image", err)
		}
		if len(files) != 1 {
			return v.badImage(fmt.Sprintf("the image has %d files in %s, want exactly one", len(files), containerDiskDir), nil)
		}
		path = files[0]
	}
	if err := w.extract(ctx, v.ContainerDisk.Image, path, base); err != nil {
		return v.badImage("cannot extract the disk from the image", err)
	}
	return nil
}

// mounted returns the disk of a containerDisk image that the launcher Pod holds: as a volume, or in a
// container.
func (w *Workspace) mounted(ctx context.Context, v volume) (convert.DiskSource, error) {
	if src, found, err := w.imageVolume(ctx, v); found {
		if err != nil {
			err = v.badImage("cannot read the image", err)
		}
		return src, err
	}
	if w.Volumes == nil {
		return convert.DiskSource{}, v.badImage("its Pod has no volume for the image", domain.ErrNotReady)
	}
	src, err := w.Volumes.ContainerDisk(ctx, v.vmi, v.index)
	if err != nil {
		return convert.DiskSource{}, v.fault("containerDisk", "cannot mount the disk of its container", "check the container in the launcher Pod", err)
	}
	return src, nil
}
