// SPDX-License-Identifier: Apache-2.0

package mounts

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"

	"golang.org/x/sys/unix"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/internal/volumeclaim"
)

// deviceFolder is where a container has its devices.
const deviceFolder = "/dev"

// given are the character devices that the kubelet allocates to launchers, with their numbers
// (Linux: Documentation/admin-guide/devices.txt).
var given = []struct {
	path         string
	major, minor uint32
}{{"kvm", 10, 232}, {"net/tun", 10, 200}, {"vhost-net", 10, 238}, {"vhost-vsock", 10, 241}}

// passed are the directories of devices of the node that the kubelet allocates to launchers, with the
// major numbers of what is in them; zero is any, as the kernel chooses that of IOMMU groups.
var passed = []struct {
	path  string
	major uint32
	// depth is how many directories are between it and the devices.
	depth int
}{{"vfio", 0, 0}, {"bus/usb", 189, 1}}

// maxPassed bounds the entries of one of these directories, which the container runtime makes.
const maxPassed = 1024

// OwnDevices makes the devices that the kubelet has put into the launcher's container the
// hypervisor's: those for guests, host devices, and that of each claim in Block mode. The launcher of a
// VMI with host devices may lock the guest's memory from then on. It changes device nodes of
// the container only: not one that is a mount of the node's, nor one behind a link. A device that
// is not there is left out: a Pod gets what it has asked for.
func (p Pods) OwnDevices(_ context.Context, vmi *v1.VirtualMachineInstance) error {
	ns, _, err := p.launcher(vmi)
	if err != nil {
		return fmt.Errorf("mounts: devices of VMI %s: %w", vmi.UID, err)
	}
	defer ns.close()
	dir, err := walk(ns.root, deviceFolder, unix.O_PATH|unix.O_DIRECTORY)
	if err != nil {
		return fmt.Errorf("mounts: devices of VMI %s: %w", vmi.UID, err)
	}
	defer dir.Close()
	var errs []error
	for _, d := range given {
		errs = append(errs, p.own(dir, d.path, unix.S_IFCHR, func(dev uint64) bool { return dev == unix.Mkdev(d.major, d.minor) }))
	}
	for _, d := range passed {
		errs = append(errs, p.ownAll(dir, d.path, d.depth, d.major))
	}
	for i := range vmi.Spec.Volumes {
		if v := &vmi.Spec.Volumes[i]; volumeclaim.Of(v) != "" && checkName(v.Name) == nil {
			errs = append(errs, p.own(dir, v.Name, unix.S_IFBLK, func(uint64) bool { return true }))
		}
	}
	pid, err := process(vmi, p.PID)
	if err == nil {
		err = lockMemory(vmi, pid, unix.Prlimit)
	}
	if err := errors.Join(append(errs, err)...); err != nil {
		return fmt.Errorf("mounts: devices of VMI %s: %w", vmi.UID, err)
	}
	return nil
}

// ownAll changes the owner of all character devices in a directory, if it is there.
func (p Pods) ownAll(dir *os.File, path string, depth int, major uint32) error {
	f, err := openat(dir, path, unix.O_RDONLY|unix.O_DIRECTORY, ownContent)
	if errors.Is(err, domain.ErrNotReady) || errors.Is(err, domain.ErrInvalid) {
		return nil // not there, or not the runtime's
	}
	if err != nil {
		return err
	}
	defer f.Close()
	entries, err := f.Readdirnames(maxPassed)
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	var errs []error
	for _, name := range entries {
		if depth > 0 {
			err = p.ownAll(f, name, depth-1, major)
		} else {
			err = p.own(f, name, unix.S_IFCHR, func(dev uint64) bool { return major == 0 || unix.Major(dev) == major })
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// own changes the owner of one device, if it is there and of that kind.
func (p Pods) own(dir *os.File, name string, kind uint32, allocated func(dev uint64) bool) error {
	f, err := openat(dir, name, unix.O_PATH|unix.O_NOFOLLOW, ownContent)
	if errors.Is(err, domain.ErrNotReady) || errors.Is(err, domain.ErrInvalid) {
		return nil // not there, or not the runtime's device node
	}
	if err != nil {
		return err
	}
	defer f.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return fmt.Errorf("%s: %w", path.Join(deviceFolder, name), err)
	}
	if st.Mode&unix.S_IFMT != kind || !allocated(st.Rdev) || int64(st.Uid) == int64(p.User) {
		return nil
	}
	if err := unix.Fchownat(int(f.Fd()), "", p.User, p.Group, unix.AT_EMPTY_PATH); err != nil {
		return fmt.Errorf("giving %s to user %d: %w", path.Join(deviceFolder, name), p.User, err)
	}
	return nil
}
