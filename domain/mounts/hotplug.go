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
	// csi is the part of the kubelet's names for volumes that it mounts one folder
	// further down.
	csi = "kubernetes.io~csi"
)

// podVolumes are the kinds of volumes that hold no guest's disk: the kubelet's folders
// for them.
var podVolumes = []string{
	"kubernetes.io~empty-dir", "kubernetes.io~projected", "kubernetes.io~configmap",
	"kubernetes.io~secret", "kubernetes.io~downward-api",
}

// Volume is a volume that another Pod carries to the node for the guest.
type Volume struct {
	// Name is that of the volume in the guest's spec.
	Name string
	// Carrier is the UID of the Pod that carries it.
	Carrier types.UID
	// PersistentVolume is the name of the PersistentVolume, by which the kubelet names
	// its folder; empty if the Pod carries only one of that mode.
	PersistentVolume string
	// Block is the volume's mode.
	Block bool
}

// Plugged is a volume where the guest finds it.
type Plugged struct {
	// Path is that of the disk: a file, or a device node.
	Path string
	// Major and Minor are the numbers of the device; zero for files.
	Major, Minor uint32
}

// Plug brings a volume to the guest: the file disk.img in it is mounted as
// <name>.img, a block device gets a device node <name>. That the guest may open the
// device is another matter: see package cgroup. While the volume is not on the node
// the error wraps [domain.ErrNotReady].
func (m *Mounter) Plug(g Guest, v Volume) (Plugged, error) {
	out, err := m.plug(g, v)
	if err != nil {
		return Plugged{}, fmt.Errorf("mounts: volume %q of guest %s: %w", v.Name, g.UID, err)
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
		return m.node(g, f, v)
	}
	p, err := m.mount(g, f, v.Name+imageSuffix, func() (*source, error) { return m.diskImage(v) })
	return Plugged{Path: p}, err
}

// Unplug takes a volume away from the guest. One that is not there is a success.
func (m *Mounter) Unplug(g Guest, v Volume) error {
	if err := checkName(v.Name); err != nil {
		return fmt.Errorf("mounts: unplug: %w", err)
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
		return fmt.Errorf("mounts: unplug volume %q of guest %s: %w", v.Name, g.UID, err)
	}
	return nil
}

// Retain takes away all that [Mounter.Plug] has brought to the guest where this process
// is, but for the volumes of those names. So it finds what earlier processes have left.
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
		places = slices.DeleteFunc(places, func(o Place) bool { return o == p })
		err := m.release(p, places, 0)
		if err == nil {
			err = m.records().drop(uid, p)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("mounts: take %s away: %w", m.path(p), err))
		}
	}
	return errors.Join(errs...)
}

// diskImage finds the disk in a volume with a file system.
func (m *Mounter) diskImage(v Volume) (*source, error) {
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
	// Down to here it is the kubelet's, below it is the user's.
	f, err := walk(pods, path.Join(dir, diskImage), unix.O_PATH)
	if err != nil {
		return nil, err
	}
	s, err := newSource(f, false)
	if err != nil {
		f.Close()
	}
	return s, err
}

// one finds the folder, or link, of the volume among those of the Pod that carries
// it: there has to be exactly one.
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
		return "", fmt.Errorf("the Pod %s does not have the volume yet: %w", v.Carrier, domain.ErrNotReady)
	case 1:
		return found[0], nil
	}
	return "", fmt.Errorf("the Pod %s has %d volumes that it may be (%s); name the PersistentVolume: %w",
		v.Carrier, len(found), strings.Join(found, ", "), domain.ErrInvalid)
}

// candidates are the volumes below a Pod's folder that may hold a disk; all of them if
// no name is given.
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

// node makes a device node for a volume that is a block device.
func (m *Mounter) node(g Guest, f *folder, v Volume) (Plugged, error) {
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

// makeNode makes the device node unless it is there. Another one, of a device the
// volume had before, is replaced.
func (f *folder) makeNode(g Guest, name string, dev uint64) error {
	was, err := look(f.dir, name)
	switch {
	case errors.Is(err, domain.ErrNotReady):
	case err != nil:
		return err
	case was.stat.Mode&unix.S_IFMT != unix.S_IFBLK:
		return fmt.Errorf("%s is a %s, and no device node: %w", name, kinds[was.stat.Mode&unix.S_IFMT], domain.ErrInvalid)
	case was.stat.Rdev != dev:
		if err := unix.Unlinkat(int(f.dir.Fd()), name, 0); err != nil {
			return err
		}
		err = domain.ErrNotReady
	}
	if err != nil {
		if err := unix.Mknodat(int(f.dir.Fd()), name, unix.S_IFBLK|0o600, int(dev)); err != nil { //nolint:gosec // device numbers have 32 bits of each
			return fmt.Errorf("make the device node: %w", err)
		}
	}
	node, err := walk(f.dir, name, unix.O_PATH|unix.O_NOFOLLOW)
	if err != nil {
		return err
	}
	defer node.Close()
	st, err := isKind(node, unix.S_IFBLK)
	if err == nil && st.Rdev != dev {
		err = fmt.Errorf("%s is another device by now: %w", name, domain.ErrInvalid)
	}
	if err != nil {
		return err
	}
	return unix.Fchownat(int(node.Fd()), "", g.User, g.Group, unix.AT_EMPTY_PATH)
}

// device finds the number of the volume's block device. The kubelet links to it.
func (m *Mounter) device(v Volume) (uint64, error) {
	p, err := m.one(v, blockVolumes)
	if err != nil {
		return 0, err
	}
	ns, err := namespaceOf(0, m.rootPath())
	if err != nil {
		return 0, err
	}
	defer ns.close()
	f, err := follow(ns.root, path.Join(m.podsPath(), p), unix.O_PATH)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	st, err := isKind(f, unix.S_IFBLK)
	return st.Rdev, err
}
