// SPDX-License-Identifier: Apache-2.0

package mounts

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/domain"
)

// Folders in the file system of a launcher, which are KubeVirt's.
const (
	runFolder     = "/var/run"
	privateFolder = runFolder + "/kubevirt-private"
	claimFolder   = privateFolder + "/vmi-disks"
	scratchFolder = runFolder + "/kubevirt-ephemeral-disks"
	imageFolder   = runFolder + "/kubevirt-image-volume"
	kernelFolder  = runFolder + "/kubevirt-kernel-boot"
)

// shared are the folders of a launcher that its Pod and the node share, each with its volume.
var shared = []struct{ folder, volume string }{{scratchFolder, "ephemeral-disks"}, {privateFolder, "private"}}

// mounted are the folders of a launcher at which, or directly below which, the container runtime
// mounts volumes of the Pod.
var mounted = []struct {
	folder string
	below  bool
}{{claimFolder, true}, {imageFolder, true}, {kernelFolder, false}}

// Pods opens what the launcher Pods of VMIs hold, for a node on which a kubelet runs one for each
// VMI. It implements what workspace.Workspace needs there. Processes of a Pod can change its
// volumes at any moment: see the documentation of the package.
type Pods struct {
	// Mounter knows the kubelet's directory of Pods.
	Mounter *Mounter
	// Pod returns the UID of the launcher Pod.
	Pod func(vmi *v1.VirtualMachineInstance) (types.UID, error)
	// PID returns a process of the launcher, as long as that is known to be alive.
	PID func(vmi *v1.VirtualMachineInstance) (int, error)
	// User and Group are those of the hypervisor in the Pod (KubeVirt: 107, qemu).
	User, Group int
}

// Folder opens a directory by the path that the launcher has for it. One that the Pod shares with
// the node is made where it is missing, for the hypervisor alone; one at which the Pod has a claim
// or an image has to be a mount. While there is none the error wraps [domain.ErrNotReady].
func (p Pods) Folder(_ context.Context, vmi *v1.VirtualMachineInstance, dir string) (*os.File, error) {
	f, err := p.folder(vmi, dir)
	if err != nil {
		return nil, fmt.Errorf("mounts: folder %s of VMI %s: %w", dir, vmi.UID, err)
	}
	return f, nil
}

func (p Pods) folder(vmi *v1.VirtualMachineInstance, dir string) (*os.File, error) {
	if dir != "/" {
		if err := checkPath(dir); err != nil {
			return nil, err
		}
	}
	ns, pod, err := p.launcher(vmi)
	if err != nil {
		return nil, err
	}
	defer ns.close()
	for _, m := range mounted {
		if isBelow(m.folder, dir) {
			volume, below := m.folder, strings.TrimPrefix(dir, m.folder)
			if m.below {
				name, rest, _ := strings.Cut(strings.TrimPrefix(below, "/"), "/")
				volume, below = path.Join(volume, name), rest
			}
			return insideVolume(ns, volume, strings.TrimPrefix(below, "/"))
		}
	}
	for _, s := range shared {
		if isBelow(s.folder, dir) {
			return p.scratch(pod, s.volume, strings.TrimPrefix(dir, s.folder))
		}
	}
	return openFollowing(ns.root, filepath.Join(".", dir), unix.O_PATH|unix.O_DIRECTORY)
}

// isBelow reports whether a path is a folder or below it.
func isBelow(folder, p string) bool { return p == folder || strings.HasPrefix(p, folder+"/") }

// launcher opens the namespace of the VMI's launcher, and returns its Pod.
func (p Pods) launcher(vmi *v1.VirtualMachineInstance) (*namespace, types.UID, error) {
	pod, err := p.Pod(vmi)
	if err != nil {
		return nil, "", err
	}
	pid, err := process(vmi, p.PID)
	if err != nil {
		return nil, "", err
	}
	ns, err := namespaceOf(pid, "")
	if err != nil {
		return nil, "", err
	}
	// The process may have ended before its namespace was opened, and its PID may be another one's.
	again, err := process(vmi, p.PID)
	now, gone := p.Pod(vmi)
	switch {
	case err != nil || gone != nil:
		err = errors.Join(err, gone)
	case again != pid || now != pod:
		err = fmt.Errorf("its launcher has been replaced: %w", domain.ErrNotReady)
	case ns.own:
		err = fmt.Errorf("its launcher has no mount namespace of its own: %w", domain.ErrInvalid)
	}
	if err != nil {
		ns.close()
		return nil, "", err
	}
	return ns, pod, nil
}

// volumeAt opens the volume that is mounted at a path of the launcher. Its folder may be in another
// volume, whose content the Pod's processes can replace, but not by a mount.
func volumeAt(ns *namespace, dir string) (*os.File, error) {
	run, err := openFollowing(ns.root, runFolder, unix.O_PATH|unix.O_DIRECTORY) // an image may have a link there
	if err != nil {
		return nil, err
	}
	defer run.Close()
	f, err := walk(run, strings.TrimPrefix(dir, runFolder), unix.O_PATH|unix.O_DIRECTORY)
	if err != nil {
		return nil, err
	}
	if err := isMount(f); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// insideVolume opens a directory of a volume that is mounted at a path of the launcher.
func insideVolume(ns *namespace, volume, below string) (*os.File, error) {
	f, err := volumeAt(ns, volume)
	if err != nil || below == "" {
		return f, err
	}
	defer f.Close()
	return openat(f, below, unix.O_PATH|unix.O_DIRECTORY, ownContent)
}

// ownContent resolves a path within one file system, without links.
const ownContent = unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS | unix.RESOLVE_NO_XDEV

// isMount verifies that an open file is the root of a mount.
func isMount(f *os.File) error {
	s, err := inspect(f)
	if err == nil && !s.mounted {
		err = fmt.Errorf("%s is not a volume of the Pod: %w", f.Name(), domain.ErrInvalid)
	}
	return err
}

// scratch opens a directory below a volume that Pod and node share, and makes it.
func (p Pods) scratch(pod types.UID, volume, below string) (*os.File, error) {
	dir, err := p.ofKubelet(pod, path.Join(emptyDirs, volume), unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return nil, err
	}
	if below == "" {
		return dir, nil
	}
	for name := range strings.SplitSeq(strings.TrimPrefix(below, "/"), "/") {
		next, err := p.subfolder(dir, name)
		dir.Close()
		if err != nil {
			return nil, err
		}
		dir = next
	}
	return dir, nil
}

// ofKubelet opens a file of the kubelet's directory of a Pod.
func (p Pods) ofKubelet(pod types.UID, name string, flags uint64) (*os.File, error) {
	if err := checkUID("Pod", pod); err != nil {
		return nil, err
	}
	pods, err := p.Mounter.pods()
	if err != nil {
		return nil, err
	}
	defer pods.Close()
	return walk(pods, path.Join(string(pod), name), flags)
}

// subfolder opens a directory, and makes it, for the hypervisor alone. One that a crash has left
// with another owner gets that owner.
func (p Pods) subfolder(dir *os.File, name string) (*os.File, error) {
	if err := checkName(name); err != nil {
		return nil, err
	}
	f, err := openat(dir, name, unix.O_RDONLY|unix.O_DIRECTORY, ownContent)
	if errors.Is(err, domain.ErrNotReady) {
		if err := unix.Mkdirat(int(dir.Fd()), name, ownerOnly|searchable); err != nil && !errors.Is(err, unix.EEXIST) {
			return nil, fmt.Errorf("making %s: %w", name, err)
		}
		f, err = openat(dir, name, unix.O_RDONLY|unix.O_DIRECTORY, ownContent)
	}
	if err != nil {
		return nil, err
	}
	if err := p.Give(f); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// ownerOnly is the mode of files for the hypervisor alone; directories are searchable as well.
const ownerOnly, searchable = 0o600, 0o100

// Give makes an open file or directory the hypervisor's. One that is, or that is on a read-only
// file system, is left alone.
func (p Pods) Give(f *os.File) error {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return fmt.Errorf("mounts: owner of %s: %w", f.Name(), err)
	}
	want := st.Mode&0o777 | ownerOnly // claims may have other readers
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
	case unix.S_IFDIR:
		want = ownerOnly | searchable
	default:
		return fmt.Errorf("mounts: %s is a %s: %w", f.Name(), kinds[st.Mode&unix.S_IFMT], domain.ErrInvalid)
	}
	var err error
	if int64(st.Uid) != int64(p.User) || int64(st.Gid) != int64(p.Group) {
		err = unix.Fchown(int(f.Fd()), p.User, p.Group)
	}
	if err == nil && want != st.Mode&0o7777 {
		err = unix.Fchmod(int(f.Fd()), want)
	}
	if err != nil && !errors.Is(err, unix.EROFS) {
		return fmt.Errorf("mounts: giving %s to user %d: %w", f.Name(), p.User, err)
	}
	return nil
}
