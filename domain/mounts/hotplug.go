// SPDX-License-Identifier: Apache-2.0

package mounts

import (
	"errors"
	"fmt"
	"os"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"

	"github.com/virtloom/virtloom/domain"
)

const (
	fileVolumes  = "volumes"
	blockVolumes = "volumeDevices"
	diskImage    = "disk.img"
	imageSuffix  = ".img"
	// csi is the part of the kubelet's directory names for volumes that it mounts one directory
	// further down.
	csi = "kubernetes.io~csi"
)

// podVolumes are the kubelet's directories of volume kinds that never hold a disk of a guest.
var podVolumes = []string{
	"kubernetes.io~empty-dir", "kubernetes.io~projected", "kubernetes.io~configmap",
	"kubernetes.io~secret", "kubernetes.io~downward-api",
}

// Volume is a hotplugged volume that an attachment Pod carries to the node.
type Volume struct {
	// Name is the name of the volume in the spec of the VMI.
	Name string
	// Carrier is the UID of the attachment Pod.
	Carrier types.UID
	// PersistentVolume is the name of the PersistentVolume, which the kubelet uses as directory
	// name. May be empty if the Pod has only one volume of that mode.
	PersistentVolume string
	// HostPath is the folder on the node of a PersistentVolume of type hostPath, of which the kubelet
	// puts nothing into the directories of a Pod. Empty for others.
	HostPath string
	// Block says that the volume mode is Block.
	Block bool
}

// Plugged is the location of a volume for the guest.
type Plugged struct {
	// Path is the path of the disk: a file, or a device node.
	Path string
	// Major and Minor are the device numbers; zero for files.
	Major, Minor uint32
}

// Plug makes a volume available to the guest: the file disk.img in it is mounted as <name>.img, and
// a block device gets a device node <name>. It does not allow the guest to open the device: see
// package cgroup. Until the volume is on the node, the error wraps [domain.ErrNotReady].
func (m *Mounter) Plug(g Guest, v Volume) (Plugged, error) {
	out, err := m.plug(g, v)
	if err != nil {
		return Plugged{}, fmt.Errorf("mounts: volume %q of VMI %s: %w", v.Name, g.UID, err)
	}
	return out, nil
}

func (m *Mounter) plug(g Guest, v Volume) (Plugged, error) {
	if err := errors.Join(checkName(v.Name), checkUID("carrier", v.Carrier)); err != nil {
		return Plugged{}, err
	}
	if v.PersistentVolume != "" {
		if err := checkName(v.PersistentVolume); err != nil {
			return Plugged{}, err
		}
	}
	f, err := m.open(g, hotplugDisks)
	if err != nil {
		return Plugged{}, err
	}
	defer f.close()
	defer m.lock(g.UID)()
	if v.Block {
		return m.blockNode(g, f, v)
	}
	p, err := m.mount(g, f, v.Name+imageSuffix, func() (*source, error) { return m.diskImage(v) })
	return Plugged{Path: p}, err
}

// Unplug removes a volume from the guest. It succeeds if there is none.
func (m *Mounter) Unplug(g Guest, v Volume) error {
	if err := checkName(v.Name); err != nil {
		return fmt.Errorf("mounts: unplugging: %w", err)
	}
	f, err := m.open(g, hotplugDisks)
	if errors.Is(err, domain.ErrNotReady) {
		return nil
	}
	if err == nil {
		defer f.close()
		defer m.lock(g.UID)()
		p := f.place
		p.Name = v.Name + imageSuffix
		if v.Block {
			p.Name = v.Name
		}
		if err = f.undo(p.Name); err == nil {
			err = m.records().drop(g.UID, p)
		}
	}
	if err != nil {
		return fmt.Errorf("mounts: unplugging volume %q of VMI %s: %w", v.Name, g.UID, err)
	}
	return nil
}

// Retain removes all volumes that [Mounter.Plug] made available in this process's mount namespace,
// except those with the given names. It also removes those of earlier processes.
func (m *Mounter) Retain(uid types.UID, names []string) error {
	if err := checkUID("guest", uid); err != nil {
		return fmt.Errorf("mounts: %w", err)
	}
	defer m.lock(uid)()
	places, err := m.records().read(uid)
	if err != nil {
		return err
	}
	var errs []error
	for _, p := range slices.Clone(places) {
		if p.Namespace != 0 || path.Base(p.Folder) != hotplugDisks || slices.Contains(names, strings.TrimSuffix(p.Name, imageSuffix)) {
			continue
		}
		places = slices.DeleteFunc(places, func(o place) bool { return o == p })
		err := m.release(p, places, 0)
		if err == nil {
			err = m.records().drop(uid, p)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("mounts: removing %s: %w", m.path(p), err))
		}
	}
	return errors.Join(errs...)
}

// diskImage opens the disk image in a volume with a file system.
func (m *Mounter) diskImage(v Volume) (*source, error) {
	if v.HostPath != "" {
		return m.diskImageOfNode(v.HostPath)
	}
	pods, err := m.pods()
	if err != nil {
		return nil, err
	}
	defer pods.Close()
	dir, err := m.one(v, fileVolumes)
	if err != nil {
		return nil, err
	}
	if path.Base(path.Dir(dir)) == csi {
		dir = path.Join(dir, "mount")
	}
	// The path is the kubelet's up to here, and the user's below.
	return openImage(pods, path.Join(dir, diskImage))
}

// diskImageOfNode opens the disk image in a folder of the node.
func (m *Mounter) diskImageOfNode(folder string) (s *source, err error) {
	ns, err := m.node()
	if err != nil {
		return nil, err
	}
	defer ns.close()
	err = ns.do(func() error {
		// The path is the administrator's up to here, and the user's below.
		dir, err := openFollowing(ns.root, folder, unix.O_PATH|unix.O_DIRECTORY)
		if err != nil {
			return err
		}
		defer dir.Close()
		s, err = openImage(dir, diskImage)
		return err
	})
	return s, err
}

func openImage(dir *os.File, file string) (*source, error) {
	f, err := walk(dir, file, unix.O_PATH)
	if err != nil {
		return nil, err
	}
	s, err := newSource(f, false)
	if err != nil {
		f.Close()
	}
	return s, err
}

// one returns the directory, or link, of the volume in its attachment Pod. There must be exactly
// one.
func (m *Mounter) one(v Volume, kind string) (string, error) {
	pods, err := m.pods()
	if err != nil {
		return "", err
	}
	defer pods.Close()
	base := path.Join(string(v.Carrier), kind)
	found, err := candidates(pods, base, v.PersistentVolume)
	if err != nil {
		return "", err
	}
	switch len(found) {
	case 0:
		return "", fmt.Errorf("attachment Pod %s does not have the volume yet: %w", v.Carrier, domain.ErrNotReady)
	case 1:
		return found[0], nil
	}
	return "", fmt.Errorf("attachment Pod %s has %d volumes that match (%s); set the PersistentVolume: %w",
		v.Carrier, len(found), strings.Join(found, ", "), domain.ErrInvalid)
}

// candidates returns the volumes in a Pod's directory that can hold a disk; all of them if name is
// empty.
func candidates(pods *os.File, base, name string) ([]string, error) {
	dir, err := walk(pods, base, unix.O_PATH|unix.O_DIRECTORY)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	plugins, err := names(dir)
	if err != nil {
		return nil, err
	}
	var found []string
	for _, p := range plugins {
		if slices.Contains(podVolumes, p) {
			continue
		}
		sub, err := walk(dir, p, unix.O_PATH|unix.O_DIRECTORY)
		if err != nil {
			return nil, err
		}
		volumes, err := names(sub)
		sub.Close()
		if err != nil {
			return nil, err
		}
		for _, volume := range volumes {
			if name == "" || volume == name {
				found = append(found, path.Join(base, p, volume))
			}
		}
	}
	return found, nil
}

// blockNode creates a device node for a block volume.
func (m *Mounter) blockNode(g Guest, f *folder, v Volume) (Plugged, error) {
	dev, err := m.device(v)
	if err != nil {
		return Plugged{}, err
	}
	p := f.place
	p.Name = v.Name
	if err := m.records().add(g.UID, p); err != nil {
		return Plugged{}, err
	}
	out := Plugged{Path: m.path(p), Major: unix.Major(dev), Minor: unix.Minor(dev)}
	return out, f.do(func() error { return f.makeNode(g, p.Name, dev) })
}

// makeNode creates the device node unless it exists. The node of a previous device of the volume is
// replaced.
func (f *folder) makeNode(g Guest, name string, dev uint64) error {
	was, err := lookEntry(f.dir, name)
	switch {
	case errors.Is(err, domain.ErrNotReady):
	case err != nil:
		return err
	case was.stat.Mode&unix.S_IFMT != unix.S_IFBLK:
		return fmt.Errorf("%s is a %s, not a device node: %w", name, kinds[was.stat.Mode&unix.S_IFMT], domain.ErrInvalid)
	case was.stat.Rdev != dev:
		if err := unix.Unlinkat(int(f.dir.Fd()), name, 0); err != nil {
			return err
		}
		err = domain.ErrNotReady
	}
	if err != nil {
		if err := unix.Mknodat(int(f.dir.Fd()), name, unix.S_IFBLK|0o600, int(dev)); err != nil { //nolint:gosec // device numbers have 32 bits each
			return fmt.Errorf("creating the device node: %w", err)
		}
	}
	node, err := walk(f.dir, name, unix.O_PATH|unix.O_NOFOLLOW)
	if err != nil {
		return err
	}
	defer node.Close()
	st, err := isKind(node, unix.S_IFBLK)
	if err == nil && st.Rdev != dev {
		err = fmt.Errorf("%s was replaced by another device: %w", name, domain.ErrInvalid)
	}
	if err != nil {
		return err
	}
	return unix.Fchownat(int(node.Fd()), "", g.User, g.Group, unix.AT_EMPTY_PATH)
}

// device returns the device number of a block volume. The kubelet links to it, on the node: to a
// device, or to one that a storage driver has published in another folder of the kubelet's.
func (m *Mounter) device(v Volume) (uint64, error) {
	p, err := m.one(v, blockVolumes)
	if err != nil {
		return 0, err
	}
	pods, err := m.pods()
	if err != nil {
		return 0, err
	}
	defer pods.Close()
	f, err := walk(pods, p, unix.O_PATH|unix.O_NOFOLLOW)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	to := make([]byte, maxPath+1)
	if n, err := unix.Readlinkat(int(f.Fd()), "", to); err == nil {
		return m.deviceOfNode(string(to[:n]))
	}
	st, err := isKind(f, unix.S_IFBLK)
	return st.Rdev, err
}

func (m *Mounter) deviceOfNode(path string) (uint64, error) {
	ns, err := m.node()
	if err != nil {
		return 0, err
	}
	defer ns.close()
	f, err := openFollowing(ns.root, path, unix.O_PATH)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	st, err := isKind(f, unix.S_IFBLK)
	return st.Rdev, err
}
