// SPDX-License-Identifier: Apache-2.0

package domainctrl

import (
	"context"
	"fmt"

	"github.com/virtloom/virtloom/domain"
)

// containerDisk puts a writable overlay over the image's disk; what the guest
// writes is gone when it ends.
func (w *Workspace) containerDisk(ctx context.Context, v volume) (domain.DiskSource, error) {
	base, overlay := domain.DiskSource{Path: v.file(".base")}, v.file(".qcow2")
	var err error
	if w.Volumes != nil && w.Images == nil {
		base, err = w.mounted(ctx, v)
	} else {
		err = w.extractDisk(ctx, v, base.Path)
	}
	if err != nil {
		return domain.DiskSource{}, err
	}
	base.ReadOnly = true
	f, err := openDisk(base.Path)
	if err != nil {
		return domain.DiskSource{}, v.badImage("the image's disk cannot be read", err)
	}
	defer f.Close()
	var bytes int64
	if base.Format, bytes, err = imageFormat(f); err != nil {
		return domain.DiskSource{}, v.badImage("the image's disk cannot be read", err)
	}
	if err := overlayOf(ctx, overlay, base, bytes); err != nil {
		return domain.DiskSource{}, v.badImage("no overlay can be made for the image's disk", err)
	}
	return domain.DiskSource{Path: overlay, Format: "qcow2", Backing: &base}, nil
}

// badImage builds the error for a containerDisk.
func (v volume) badImage(reason string, err error) error {
	return v.fault("containerDisk.image", reason, "make the image available on the node, or correct its name", err)
}

// extractDisk takes the disk out of the image of a containerDisk, once.
func (w *Workspace) extractDisk(ctx context.Context, v volume, base string) error {
	path := v.ContainerDisk.Path
	if path == "" && !exists(base) {
		if w.Images == nil {
			return v.badImage("no image store is configured on the node", nil)
		}
		files, err := w.Images.List(ctx, v.ContainerDisk.Image, containerDiskDir)
		if err != nil {
			return v.badImage("the image cannot be read", err)
		}
		if len(files) != 1 {
			return v.badImage(fmt.Sprintf("the image has %d files in %s, not one", len(files), containerDiskDir), nil)
		}
		path = files[0]
	}
	if err := w.extract(ctx, v.ContainerDisk.Image, path, base); err != nil {
		return v.badImage("the disk cannot be read from the image", err)
	}
	return nil
}

// mounted is the image of a containerDisk that a container holds.
func (w *Workspace) mounted(ctx context.Context, v volume) (domain.DiskSource, error) {
	src, err := w.Volumes.ContainerDisk(ctx, v.vmi, v.index)
	if err != nil {
		return domain.DiskSource{}, v.fault("containerDisk", "the disk of its container cannot be mounted", "look at the container of the guest's Pod", err)
	}
	return src, nil
}
