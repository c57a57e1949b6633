// SPDX-License-Identifier: Apache-2.0

package mounts

import (
	"context"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/domain"
)

// kernelSocket is the socket of the container with the VMI's kernel, beside those of containerDisks.
const kernelSocket = "kernel-boot.sock"

// Kernel opens a file of the image that the VMI boots its kernel from
// (spec.domain.firmware.kernelBoot.container), for reading: a regular file of the image itself,
// not of what is mounted in its container. Links lead within the image. Until the kubelet has
// mounted the image, or its container listens, the error wraps [domain.ErrNotReady]; if the image
// lacks the file, [domain.ErrNotFound].
func (p Pods) Kernel(_ context.Context, vmi *v1.VirtualMachineInstance, file string) (*os.File, error) {
	f, err := p.kernel(vmi, file)
	if err != nil {
		return nil, fmt.Errorf("mounts: kernel image of VMI %s: %w", vmi.UID, err)
	}
	return f, nil
}

func (p Pods) kernel(vmi *v1.VirtualMachineInstance, file string) (*os.File, error) {
	ns, pod, err := p.launcher(vmi)
	if err != nil {
		return nil, err
	}
	defer ns.close()
	volume, err := volumeAt(ns, kernelFolder)
	if err == nil {
		defer volume.Close()
		return imageFile(volume, file)
	}
	if !errors.Is(err, domain.ErrNotReady) {
		return nil, err
	}
	socket, err := p.socket(Guest{UID: vmi.UID, Pod: pod}, kernelSocket)
	if err != nil {
		return nil, err
	}
	defer socket.Close()
	container, err := peer(socket)
	if err != nil {
		return nil, err
	}
	defer container.close()
	return imageFile(container.root, file)
}

// socket opens the socket of a container in the Pod, not to connect by its name.
func (p Pods) socket(guest Guest, name string) (*os.File, error) {
	f, err := p.Mounter.open(guest, containerDisks)
	if err != nil {
		return nil, err
	}
	defer f.close()
	s, err := walk(f.dir, name, unix.O_PATH)
	if err != nil {
		return nil, err
	}
	if _, err := isKind(s, unix.S_IFSOCK); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// imageFile opens a regular file of an image by its path in it.
func imageFile(root *os.File, file string) (*os.File, error) {
	if err := checkPath(file); err != nil {
		return nil, err
	}
	// Opening a pipe, or a device, must not wait for others: it is refused afterwards.
	f, err := openat(root, file, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY, unix.RESOLVE_IN_ROOT|unix.RESOLVE_NO_MAGICLINKS|unix.RESOLVE_NO_XDEV)
	if errors.Is(err, domain.ErrNotReady) { // an image does not change
		return nil, fmt.Errorf("no file %q: %w", file, domain.ErrNotFound)
	}
	if err != nil {
		return nil, err
	}
	if _, err := isKind(f, unix.S_IFREG); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}
