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
	// DefaultPods is the kubelet's folder of Pods.
	DefaultPods = "/var/lib/kubelet/pods"
	// DefaultRecords is where mounts are written down.
	DefaultRecords = "/var/run/virtloom/mounts"

	emptyDirs        = "volumes/kubernetes.io~empty-dir"
	launcherFolders  = "/var/run/kubevirt"
	containerDisks   = "container-disks"
	hotplugDisks     = "hotplug-disks"
	containerDiskDir = "/disk"
)

// Mounter mounts disks for the guests of a node. Its methods may be called at any
// time and by anybody; what is done for one guest is done one after the other.
// Repeating them changes nothing. Errors wrap [domain.ErrNotReady] for what comes by
// itself, and [domain.ErrInvalid] for what somebody has to put right.
type Mounter struct {
	// Pods is the kubelet's folder of Pods; empty means DefaultPods.
	Pods string
	// Records is the folder for the records of guests, which has to last until the
	// node is started anew and no longer; empty means DefaultRecords.
	Records string
	// Root is where the node's file system is seen, in which devices are looked up;
	// empty means /.
	Root string

	guests sync.Map // by UID, a *sync.Mutex
}

// Guest is for whom something is mounted.
type Guest struct {
	// UID is that of the VirtualMachineInstance.
	UID types.UID
	// Pod is the UID of its launcher's Pod on this node.
	Pod types.UID
	// PID is a process of the launcher, in whose mount namespace all is mounted. Zero
	// means this process's own: the launcher sees what is mounted in its Pod's folders,
	// as their volumes propagate (mountPropagation: HostToContainer).
	PID int
	// User and Group are who shall own device nodes (KubeVirt: 107, qemu).
	User, Group int
}

// lock keeps all others away from the guest.
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
		return DefaultPods
	}
	return m.Pods
}

func (m *Mounter) rootPath() string {
	if m.Root == "" {
		return "/"
	}
	return m.Root
}

func (m *Mounter) records() records {
	if m.Records == "" {
		return records{DefaultRecords}
	}
	return records{m.Records}
}

// folder is a folder of a launcher while something is done in it.
type folder struct {
	*namespace
	dir   *os.File
	place Place // without a name
}

func (f *folder) close() {
	f.dir.Close()
	f.namespace.close()
}

// open opens a folder in which guest and agent meet.
func (m *Mounter) open(g Guest, name string) (*folder, error) {
	if err := errors.Join(checkUID("guest", g.UID), checkUID("Pod", g.Pod)); err != nil {
		return nil, err
	}
	p := Place{Folder: filepath.Join(string(g.Pod), emptyDirs, name)}
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

// reopen opens the folder of a place; ns is the namespace if it is not this process's.
func (m *Mounter) reopen(p Place, ns *namespace) (*folder, error) {
	f := &folder{namespace: ns, place: p}
	var err error
	if ns == nil {
		if f.namespace, err = namespaceOf(0, m.podsPath()); err != nil {
			return nil, err
		}
		f.dir, err = walk(f.root, p.Folder, unix.O_PATH|unix.O_DIRECTORY)
	} else {
		// What the launcher's image has on the way is its own affair.
		err = ns.do(func() error {
			f.dir, err = follow(ns.root, p.Folder, unix.O_PATH|unix.O_DIRECTORY)
			return err
		})
	}
	if err != nil {
		f.namespace.close()
		return nil, err
	}
	return f, nil
}

// path is that of a name in the folder, as this process sees it, or, in another
// namespace, as its processes do.
func (m *Mounter) path(p Place) string {
	if p.Namespace != 0 {
		return filepath.Join(p.Folder, p.Name)
	}
	return filepath.Join(m.podsPath(), p.Folder, p.Name)
}

// mount mounts a source under a name, once, and makes sure that it is there.
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
		return "", fmt.Errorf("mounting between namespaces needs Linux 5.12 or later: %w", domain.ErrUnsupported)
	}
	if err := m.records().add(g.UID, p); err != nil {
		return "", err
	}
	if err := f.do(func() error { return put(f.dir, name, s) }); err != nil {
		return "", fmt.Errorf("mount %s: %w", m.path(p), err)
	}
	return m.path(p), nil
}

func (f *folder) look(name string) (out seen, err error) {
	err = f.do(func() error {
		out, err = look(f.dir, name)
		return err
	})
	return out, err
}

// put mounts the source under a name of the folder, in its namespace.
func put(dir *os.File, name string, s *source) error {
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
	// Who owns the folder may have moved the file away in between.
	now, err := look(dir, name)
	if err == nil && !now.is(s) {
		err = fmt.Errorf("something else is there than what was mounted: %w", domain.ErrInvalid)
	}
	if err != nil {
		return errors.Join(err, takeBack(dir, name, now, s))
	}
	return nil
}

// takeBack undoes a mount that cannot be seen under its name, as far as it can be
// found.
func takeBack(dir *os.File, name string, now seen, s *source) error {
	if now.is(s) {
		return unmount(dir, name)
	}
	if s.tree == nil {
		return nil
	}
	// The mount itself is still held open, wherever it is.
	err := unix.Unmount(fdPath(s.tree), unix.MNT_DETACH)
	if errors.Is(err, unix.EINVAL) {
		return nil
	}
	return err
}

// undo takes away what is at a place: mounts, and the file or device node below.
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

// Release takes away all that was mounted and made for the guest, by this process or
// earlier ones. A guest that has nothing is a success. pid is a process of its
// launcher; zero if there is none any more, and with it no namespace of its own.
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
			errs = append(errs, fmt.Errorf("mounts: release %s: %w", m.path(p), err))
		}
	}
	if len(errs) == 0 {
		m.guests.Delete(uid)
	}
	return errors.Join(errs...)
}

// release takes away what is at a place, and what was moved from there; rest are the
// places that are still to come.
func (m *Mounter) release(p Place, rest []Place, pid int) error {
	var ns *namespace
	if p.Namespace != 0 {
		var err error
		if pid == 0 {
			return nil
		}
		if ns, err = namespaceOf(pid, ""); errors.Is(err, domain.ErrNotReady) {
			return nil // and its mounts with it
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

// strays unmounts the mounts in the folder that have no record any more or lie under
// another name, as who owns the folder may rename what is in it.
func (m *Mounter) strays(p Place, recorded []Place) error {
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
		known := slices.ContainsFunc(recorded, func(o Place) bool { return o.Folder == p.Folder && o.Name == name })
		if i.Mountpoint == dir || known || checkName(name) != nil {
			continue
		}
		if err := unix.Unmount(i.Mountpoint, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil && !errors.Is(err, unix.EINVAL) {
			return err
		}
	}
	return nil
}
