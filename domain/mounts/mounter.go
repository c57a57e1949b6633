// SPDX-License-Identifier: Apache-2.0

package mounts

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"

	"github.com/virtloom/virtloom/domain"
)

const (
	// defaultPods is the default directory of Pods of the kubelet.
	defaultPods = "/var/lib/kubelet/pods"
	// defaultRecords is the default directory of records of mounts.
	defaultRecords = "/var/run/virtloom/mounts"

	emptyDirs        = "volumes/kubernetes.io~empty-dir"
	launcherFolders  = "/var/run/kubevirt"
	containerDisks   = "container-disks"
	hotplugDisks     = "hotplug-disks"
	containerDiskDir = "/disk"
)

// Mounter mounts disks for the guests of a node. Its methods are safe for concurrent use,
// serialized per VMI, and idempotent. Errors wrap [domain.ErrNotReady] if a retry can help, and
// [domain.ErrInvalid] if something has to be corrected first.
type Mounter struct {
	// Pods is the kubelet's directory of Pods. Defaults to /var/lib/kubelet/pods.
	Pods string
	// Records is the directory of the records, one per VMI, which must not survive a reboot of the
	// node. Defaults to /var/run/virtloom/mounts.
	Records string
	// NodePID is a process of the node, whose root has the devices that the kubelet links to, and the
	// folders of hostPath volumes: 1 for an agent in a container that shares the node's PID namespace.
	// Zero is this process.
	NodePID int

	guests sync.Map // by UID, a *sync.Mutex
}

// Guest is the VMI for which a disk is mounted.
type Guest struct {
	// UID is the UID of the VirtualMachineInstance.
	UID types.UID
	// Pod is the UID of its launcher Pod on this node.
	Pod types.UID
	// PID is a process of the launcher, whose mount namespace receives the mounts. Zero means that
	// of this process: the launcher sees mounts in the directories of its Pod if its volumes
	// propagate them (mountPropagation: HostToContainer).
	PID int
	// User and Group own the device nodes (KubeVirt: 107, qemu).
	User, Group int
}

// lock serializes calls for a VMI.
func (m *Mounter) lock(uid types.UID) (unlock func()) {
	l, _ := m.guests.LoadOrStore(uid, &sync.Mutex{})
	mu, _ := l.(*sync.Mutex)
	mu.Lock()
	return mu.Unlock
}

func (m *Mounter) pods() (*os.File, error) {
	return os.OpenFile(m.podsPath(), unix.O_PATH|unix.O_DIRECTORY, 0)
}

func (m *Mounter) podsPath() string {
	if m.Pods == "" {
		return defaultPods
	}
	return m.Pods
}

// node opens the namespace of the node.
func (m *Mounter) node() (*namespace, error) { return namespaceOf(m.NodePID, "/") }

func (m *Mounter) records() records {
	if m.Records == "" {
		return records{defaultRecords}
	}
	return records{m.Records}
}

// folder is an open directory of a launcher.
type folder struct {
	*namespace
	dir   *os.File
	place place // with an empty name
}

func (f *folder) close() {
	f.dir.Close()
	f.namespace.close()
}

// open opens a directory that launcher and agent share.
func (m *Mounter) open(g Guest, name string) (*folder, error) {
	if err := errors.Join(checkUID("guest", g.UID), checkUID("Pod", g.Pod)); err != nil {
		return nil, err
	}
	p := place{Folder: filepath.Join(string(g.Pod), emptyDirs, name)}
	if g.PID == 0 {
		return m.reopen(p, nil)
	}
	ns, err := namespaceOf(g.PID, "")
	if err != nil {
		return nil, err
	}
	if ns.own {
		ns.close()
		return nil, fmt.Errorf("process %d has no mount namespace of its own: %w", g.PID, domain.ErrInvalid)
	}
	p.Folder, p.Namespace = filepath.Join(launcherFolders, name), ns.id
	return m.reopen(p, ns)
}

// reopen opens the directory of a place; ns is nil for the namespace of this process.
func (m *Mounter) reopen(p place, ns *namespace) (*folder, error) {
	f := &folder{namespace: ns, place: p}
	var err error
	if ns == nil {
		if f.namespace, err = namespaceOf(0, m.podsPath()); err != nil {
			return nil, err
		}
		f.dir, err = walk(f.root, p.Folder, unix.O_PATH|unix.O_DIRECTORY)
	} else {
		// Symbolic links of the launcher's image on the way are harmless: its root is the
		// launcher's.
		err = ns.do(func() error {
			f.dir, err = openFollowing(ns.root, p.Folder, unix.O_PATH|unix.O_DIRECTORY)
			return err
		})
	}
	if err != nil {
		f.namespace.close()
		return nil, err
	}
	return f, nil
}

// path returns the path of a name in the directory, as seen by this process or, in another
// namespace, by the processes there.
func (m *Mounter) path(p place) string {
	if p.Namespace != 0 {
		return filepath.Join(p.Folder, p.Name)
	}
	return filepath.Join(m.podsPath(), p.Folder, p.Name)
}

// mount mounts a source on a name, unless that has happened already, and verifies it.
func (m *Mounter) mount(g Guest, f *folder, name string, open func() (*source, error)) (string, error) {
	if err := checkName(name); err != nil {
		return "", err
	}
	p := f.place
	p.Name = name
	there, err := f.look(name)
	if err == nil && there.mounted && there.stat.Mode&unix.S_IFMT == unix.S_IFREG {
		return m.path(p), m.records().add(g.UID, p)
	}
	if err != nil && !errors.Is(err, domain.ErrNotReady) {
		return "", err
	}
	s, err := open()
	if err != nil {
		return "", err
	}
	defer s.close()
	if s.tree == nil && !f.own {
		return "", fmt.Errorf("mounting between namespaces requires Linux 5.12 or later: %w", domain.ErrUnsupported)
	}
	if err := m.records().add(g.UID, p); err != nil {
		return "", err
	}
	if err := f.do(func() error { return mountSource(f.dir, name, s) }); err != nil {
		return "", fmt.Errorf("mounting %s: %w", m.path(p), err)
	}
	return m.path(p), nil
}

func (f *folder) look(name string) (out seen, err error) {
	err = f.do(func() error {
		out, err = lookEntry(f.dir, name)
		return err
	})
	return out, err
}

// mountSource mounts the source on a name of the directory, in its namespace.
func mountSource(dir *os.File, name string, s *source) error {
	target, err := walk(dir, name, unix.O_RDONLY|unix.O_CREAT|unix.O_NONBLOCK)
	if err != nil {
		return err
	}
	defer target.Close()
	if _, err := isKind(target, unix.S_IFREG); err != nil {
		return err
	}
	if err := s.bind(dir, name, target); err != nil {
		return err
	}
	// The owner of the directory may have replaced the file in between.
	now, err := lookEntry(dir, name)
	if err == nil && !now.is(s) {
		err = fmt.Errorf("the mount was replaced: %w", domain.ErrInvalid)
	}
	if err != nil {
		return errors.Join(err, takeBack(dir, name, now, s))
	}
	return nil
}

// takeBack removes a mount that is not visible at its name, as far as it can be found.
func takeBack(dir *os.File, name string, now seen, s *source) error {
	if now.is(s) {
		return unmount(dir, name)
	}
	if s.tree == nil {
		return nil
	}
	// The mount itself is still held open, wherever it is now.
	err := unix.Unmount(fdPath(s.tree), unix.MNT_DETACH)
	if errors.Is(err, unix.EINVAL) {
		return nil
	}
	return err
}

// undo removes the mounts at a name, and the file or device node below.
func (f *folder) undo(name string) error {
	return f.do(func() error {
		if err := unmount(f.dir, name); err != nil {
			return err
		}
		err := unix.Unlinkat(int(f.dir.Fd()), name, 0)
		if errors.Is(err, unix.ENOENT) {
			return nil
		}
		return err
	})
}

// Release removes everything that was mounted and created for the VMI, by this process or earlier
// ones. It succeeds if there is nothing. pid is a process of its launcher; zero if the launcher has
// ended, and its namespace with it.
func (m *Mounter) Release(uid types.UID, pid int) error {
	if err := checkUID("guest", uid); err != nil {
		return fmt.Errorf("mounts: %w", err)
	}
	defer m.lock(uid)()
	places, err := m.records().read(uid)
	if err != nil {
		return err
	}
	var errs []error
	for i, p := range places {
		err := m.release(p, places[i+1:], pid)
		if err == nil {
			err = m.records().drop(uid, p)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("mounts: releasing %s: %w", m.path(p), err))
		}
	}
	if len(errs) == 0 {
		m.guests.Delete(uid)
	}
	return errors.Join(errs...)
}

// release removes everything at a place, and mounts that were moved away from there; rest are the
// places that follow.
func (m *Mounter) release(p place, rest []place, pid int) error {
	var ns *namespace
	if p.Namespace != 0 {
		var err error
		if pid == 0 {
			return nil
		}
		if ns, err = namespaceOf(pid, ""); errors.Is(err, domain.ErrNotReady) {
			return nil // its mounts are gone with it
		}
		if err != nil || ns.id != p.Namespace {
			return err
		}
	}
	f, err := m.reopen(p, ns)
	if errors.Is(err, domain.ErrNotReady) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.close()
	if err := f.undo(p.Name); err != nil || !f.own {
		return err
	}
	return m.strays(p, rest)
}

// strays removes mounts in the directory that have no record or are at another name, since the
// owner of the directory may rename its content.
func (m *Mounter) strays(p place, recorded []place) error {
	dir, err := filepath.EvalSymlinks(m.podsPath())
	if err != nil {
		return err
	}
	dir = filepath.Join(dir, p.Folder)
	found, err := mountinfo.GetMounts(mountinfo.PrefixFilter(dir))
	if err != nil {
		return err
	}
	for _, i := range found {
		name := strings.TrimPrefix(i.Mountpoint, dir+"/")
		known := slices.ContainsFunc(recorded, func(o place) bool { return o.Folder == p.Folder && o.Name == name })
		if i.Mountpoint == dir || known || checkName(name) != nil {
			continue
		}
		if err := unix.Unmount(i.Mountpoint, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil && !errors.Is(err, unix.EINVAL) {
			return err
		}
	}
	return nil
}
