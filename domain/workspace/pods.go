// SPDX-License-Identifier: Apache-2.0

package workspace

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/domain/convert"
)

// Folders in a launcher's file system, which are KubeVirt's.
const (
	// podRuntime has a folder for each VMI, of its sockets, logs and variables.
	podRuntime = "/var/run/kubevirt-private"
	// podClaims has a folder for each claim with a file system, by the name of its volume.
	podClaims = podRuntime + "/vmi-disks"
	// podScratch is for disks that end with the Pod.
	podScratch = "/var/run/kubevirt-ephemeral-disks"
	// podImages has a folder for each containerDisk that the kubelet has mounted, by index.
	podImages = "/var/run/kubevirt-image-volume"
	// podDevices has the devices of claims in Block mode, by the name of the volume.
	podDevices = "/dev"
)

// Pods reaches the launcher Pods of VMIs, where the kubelet runs one with a hypervisor for each:
// package domain/mounts. Paths are those that the launcher has. Its methods are idempotent. While
// something is not there yet the error wraps [domain.ErrNotReady].
type Pods interface {
	// Folder opens a directory of the launcher. Those for files that the node makes are made as
	// well: below /var/run/kubevirt-private, /var/run/kubevirt-ephemeral-disks. Of those that hold
	// a claim or an image, it opens no others than the Pod's volumes.
	Folder(ctx context.Context, vmi *v1.VirtualMachineInstance, dir string) (*os.File, error)
	// Kernel opens a file of the image of spec.domain.firmware.kernelBoot for reading. The error
	// wraps [domain.ErrNotFound] if the image does not have it.
	Kernel(ctx context.Context, vmi *v1.VirtualMachineInstance, file string) (*os.File, error)
	// Secret returns the files of a Secret that the kubelet has put into a volume of the Pod, by the
	// name of that volume; without a name those of the Pod's service account.
	Secret(ctx context.Context, vmi *v1.VirtualMachineInstance, volume string) (map[string][]byte, error)
	// Give makes an open file the hypervisor's.
	Give(f *os.File) error
	// OwnDevices makes the devices that the kubelet has allocated to the Pod the hypervisor's.
	OwnDevices(ctx context.Context, vmi *v1.VirtualMachineInstance) error
}

// OwnDevices makes the devices of the VMI's launcher Pod its hypervisor's, which decides whether
// that can use KVM.
func (w *Workspace) OwnDevices(ctx context.Context, vmi *v1.VirtualMachineInstance) error {
	if w.Pods == nil {
		return nil
	}
	if err := w.Pods.OwnDevices(ctx, vmi); err != nil {
		return &convert.Error{Object: objectName(vmi), Reason: "cannot give its devices to its launcher", Err: err}
	}
	return nil
}

// visibleDir is the directory of a VMI, as its hypervisor sees it.
type visibleDir struct {
	pods Pods // nil if the hypervisor sees the directory itself
	dir  string
	vmi  *v1.VirtualMachineInstance
}

// create returns the path that the hypervisor has for the directory of the VMI's sockets and logs,
// and makes the directory.
func (d visibleDir) create(ctx context.Context) (string, error) {
	dir := d.dir
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return dir, fmt.Errorf("workspace: directory of the VMI: %w", err)
	}
	if d.pods == nil {
		return dir, nil
	}
	dir = filepath.Join(podRuntime, string(d.vmi.UID))
	f, err := d.pods.Folder(ctx, d.vmi, dir)
	if err != nil {
		return dir, &convert.Error{Object: objectName(d.vmi), Reason: "its launcher Pod has no place for its files", Err: err}
	}
	return dir, f.Close()
}

// publish makes a file of the VMI visible to the hypervisor, and returns its path there: a file in
// its Pod is made from that of the node, whole or not at all, and once, as the guest may write to
// it. What a Pod holds is never read again.
func (d visibleDir) publish(ctx context.Context, file string) (string, error) {
	below, err := filepath.Rel(d.dir, file)
	if d.pods == nil || err != nil {
		return file, err
	}
	path := filepath.Join(podScratch, below)
	folder, err := d.pods.Folder(ctx, d.vmi, filepath.Dir(path))
	if err != nil {
		return path, err
	}
	defer folder.Close()
	return path, d.put(ctx, folder, filepath.Base(path), file)
}

// put copies a file into a folder of a Pod, unless there is one of that name.
func (d visibleDir) put(ctx context.Context, folder *os.File, name, file string) error {
	there, err := openOwn(folder, name, unix.O_PATH)
	if err == nil {
		there, err = isType(there, unix.S_IFREG, errNotRegular)
	}
	if err == nil {
		return there.Close()
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	from, err := os.Open(file)
	if err != nil {
		return err
	}
	defer from.Close()
	return appear(folder, name, ".new-"+name, func(f *os.File) error {
		if err := copyTo(ctx, f, from); err != nil {
			return err
		}
		return d.pods.Give(f)
	})
}

// published makes a disk in the VMI's directory visible to its hypervisor. Others are where they
// are.
func published(ctx context.Context, v volume, src *convert.DiskSource) error {
	if v.pods == nil || filepath.Dir(src.Path) != v.dir {
		return nil
	}
	path, err := visibleDir{v.pods, v.dir, v.vmi}.publish(ctx, src.Path)
	if err != nil {
		return v.fault("name", fmt.Sprintf("cannot put the disk of volume %q into the launcher Pod", v.Name), "check the space on the node", err)
	}
	src.Path, src.Inside = path, path
	return nil
}

// atPod returns a disk that is reached through the launcher Pod only, at that path.
func atPod(path string) convert.DiskSource {
	return convert.DiskSource{Path: path, Inside: path, Format: "raw"}
}

// claimAt returns the disk of a claim; name is that of its file.
func (v volume) claimAt(c Claim, name string) convert.DiskSource {
	src := convert.DiskSource{Path: c.Path, Format: "raw"}
	switch {
	case v.pods != nil && c.Block:
		src = atPod(filepath.Join(podDevices, v.Name))
	case v.pods != nil:
		src = atPod(filepath.Join(podClaims, v.Name, name))
	case !c.Block:
		src.Path = filepath.Join(c.Path, name)
	}
	src.Block, src.Shared = c.Block, c.Shared
	return src
}
