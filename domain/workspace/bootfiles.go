// SPDX-License-Identifier: Apache-2.0

package workspace

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/domain/convert"
)

// bootFiles are kernel and initrd of a VMI that boots a kernel directly.
type bootFiles struct {
	images Images
	pods   Pods
	vmi    *v1.VirtualMachineInstance
	// dir is the directory of the VMI.
	dir string
}

func (w *Workspace) bootFiles(vmi *v1.VirtualMachineInstance) bootFiles {
	return bootFiles{w.Images, w.Pods, vmi, w.Dir(vmi.UID)}
}

func (b bootFiles) path(name string) string { return filepath.Join(b.dir, name) }

// kernel extracts kernel and initrd of a VMI that boots a kernel directly.
func (b bootFiles) kernel(ctx context.Context) (kernel, initrd string, err error) {
	fw := b.vmi.Spec.Domain.Firmware
	if fw == nil || fw.KernelBoot == nil || fw.KernelBoot.Container == nil {
		return "", "", nil
	}
	c := fw.KernelBoot.Container
	for _, file := range []struct {
		field, path, name string
		to                *string
	}{{"kernelPath", c.KernelPath, "kernel", &kernel}, {"initrdPath", c.InitrdPath, "initrd", &initrd}} {
		if file.path == "" {
			continue
		}
		if *file.to, err = b.visible(ctx, file.path, b.path(file.name)); err != nil {
			return "", "", &convert.Error{
				Object: objectName(b.vmi), Field: "spec.domain.firmware.kernelBoot.container." + file.field,
				Reason: fmt.Sprintf("cannot extract %q from image %q", file.path, c.Image), Err: err,
				Remedy: "make the image available on the node, or correct image and path",
			}
		}
	}
	return kernel, initrd, nil
}

// visible extracts a file from the image of the kernel, once, and returns the path that the
// hypervisor has for it.
func (b bootFiles) visible(ctx context.Context, file, dst string) (string, error) {
	var err error
	switch {
	case b.pods == nil:
		err = extractOnce(ctx, b.images, b.vmi.Spec.Domain.Firmware.KernelBoot.Container.Image, file, dst)
	case !exists(dst):
		err = b.fetch(ctx, file, dst)
	}
	if err != nil {
		return "", err
	}
	return visibleDir{b.pods, b.dir, b.vmi}.publish(ctx, dst)
}

// fetch copies a file from the container or the volume that the Pod has for the image of the kernel.
func (b bootFiles) fetch(ctx context.Context, file, dst string) error {
	from, err := b.pods.Kernel(ctx, b.vmi, file)
	if err != nil {
		return err
	}
	defer from.Close()
	to, err := os.OpenFile(dst+".new", os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	if err := errors.Join(copyTo(ctx, to, from), to.Close()); err != nil {
		return errors.Join(err, os.Remove(to.Name()))
	}
	return os.Rename(to.Name(), dst)
}

// extractOnce extracts a file from an image of a store, unless it is there.
func extractOnce(ctx context.Context, images Images, image, path, dst string) error {
	if exists(dst) {
		return nil
	}
	if images == nil {
		return errors.New("no image store is configured on the node")
	}
	return images.Extract(ctx, image, path, dst)
}

// open opens a file of the image of the kernel: that in the image where there is a Pod, as the guest may write to its copy.
func (b bootFiles) open(ctx context.Context, path, name string) (*os.File, error) {
	if b.pods != nil {
		return b.pods.Kernel(ctx, b.vmi, path)
	}
	return os.Open(b.path(name))
}
