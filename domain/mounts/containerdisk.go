// SPDX-License-Identifier: Apache-2.0

package mounts

import (
	"fmt"
	"os"
	"path"

	"golang.org/x/sys/unix"

	"github.com/virtloom/virtloom/domain"
)

// ContainerDisk is a containerDisk volume, whose image is in a container of the VMI's launcher Pod.
type ContainerDisk struct {
	// Index is the index of the volume in spec.volumes, which names the socket of its container:
	// disk_<index>.sock.
	Index int
	// Path is the path of the image in the container. Defaults to the only file in /disk.
	Path string
}

// ContainerDisk mounts the image, read-only, as disk_<index>.img beside the socket on which its
// container listens, and returns the path. Until the container listens, the error wraps
// [domain.ErrNotReady].
func (m *Mounter) ContainerDisk(g Guest, d ContainerDisk) (string, error) {
	out, err := m.containerDisk(g, d)
	if err != nil {
		return "", fmt.Errorf("mounts: containerDisk %d of VMI %s: %w", d.Index, g.UID, err)
	}
	return out, nil
}

func (m *Mounter) containerDisk(g Guest, d ContainerDisk) (string, error) {
	if d.Index < 0 {
		return "", fmt.Errorf("invalid volume index: %w", domain.ErrInvalid)
	}
	if d.Path != "" {
		if err := checkPath(d.Path); err != nil {
			return "", err
		}
	}
	f, err := m.open(g, containerDisks)
	if err != nil {
		return "", err
	}
	defer f.close()
	defer m.lock(g.UID)()
	name := fmt.Sprintf("disk_%d", d.Index)
	return m.mount(g, f, name+".img", func() (*source, error) { return m.image(f, name+".sock", d.Path) })
}

// image opens the image in the container that listens on the socket.
func (m *Mounter) image(f *folder, socket, file string) (*source, error) {
	var sock *os.File
	err := f.do(func() (err error) {
		sock, err = walk(f.dir, socket, unix.O_PATH)
		return err
	})
	if err != nil {
		return nil, err
	}
	defer sock.Close()
	if _, err := isKind(sock, unix.S_IFSOCK); err != nil {
		return nil, err
	}
	ns, err := peer(sock)
	if err != nil {
		return nil, err
	}
	defer ns.close()
	var out *source
	err = ns.do(func() error {
		if file == "" {
			if file, err = onlyDiskFile(ns); err != nil {
				return err
			}
		}
		img, err := walk(ns.root, file, unix.O_PATH)
		if err != nil {
			return err
		}
		if out, err = newSource(img, true); err != nil {
			img.Close()
		}
		return err
	})
	return out, err
}

// onlyDiskFile returns the single file in a container's directory for disks.
func onlyDiskFile(ns *namespace) (string, error) {
	dir, err := walk(ns.root, containerDiskDir, unix.O_PATH|unix.O_DIRECTORY)
	if err != nil {
		return "", err
	}
	defer dir.Close()
	all, err := names(dir)
	if err != nil {
		return "", err
	}
	if len(all) != 1 {
		return "", fmt.Errorf("the container has %d files in %s, not one; set containerDisk.path: %w", len(all), containerDiskDir, domain.ErrInvalid)
	}
	return path.Join(containerDiskDir, all[0]), nil
}
