// SPDX-License-Identifier: Apache-2.0

package mounts

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/virtloom/virtloom/domain"
)

// restrictions are the attributes of every mount: disks hold data only.
const restrictions = unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV | unix.MOUNT_ATTR_NOEXEC

// source is a file to be mounted: a detached mount, if the kernel supports it, and the open file.
type source struct {
	tree, file *os.File
	stat       unix.Stat_t
	readOnly   bool
}

func (s *source) close() {
	s.file.Close()
	if s.tree != nil {
		s.tree.Close()
	}
}

// newSource creates a mount of an open regular file. It must be called in the mount namespace of
// the file, and takes ownership of the file if it succeeds.
func newSource(f *os.File, readOnly bool) (*source, error) {
	st, err := isKind(f, unix.S_IFREG)
	if err != nil {
		return nil, err
	}
	s := &source{file: f, stat: st, readOnly: readOnly}
	if s.tree, err = detached(f, readOnly); err != nil && !errors.Is(err, errOldKernel) {
		return nil, fmt.Errorf("%s cannot be mounted: %w", f.Name(), err)
	}
	return s, nil
}

// detached returns a mount of an open file that is in no namespace.
func detached(f *os.File, readOnly bool) (*os.File, error) {
	fd, err := unix.OpenTree(int(f.Fd()), "", unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_EMPTY_PATH)
	if errors.Is(err, unix.ENOSYS) {
		return nil, errOldKernel
	}
	if err != nil {
		return nil, err
	}
	tree := os.NewFile(uintptr(fd), f.Name())
	attr := unix.MountAttr{Attr_set: restrictions, Propagation: unix.MS_PRIVATE}
	if readOnly {
		attr.Attr_set |= unix.MOUNT_ATTR_RDONLY
	}
	if err := unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH, &attr); err != nil {
		tree.Close()
		if errors.Is(err, unix.ENOSYS) {
			return nil, errOldKernel
		}
		return nil, err
	}
	return tree, nil
}

// bind mounts the source over a file. It must be called in the mount namespace of that file.
func (s *source) bind(dir *os.File, name string, target *os.File) error {
	if s.tree != nil {
		return unix.MoveMount(int(s.tree.Fd()), "", int(target.Fd()), "", unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH)
	}
	return s.bindByName(dir, name, target)
}

// bindByName does the same on kernels before 5.12, within a single namespace. The mount is briefly
// visible before it is restricted.
func (s *source) bindByName(dir *os.File, name string, target *os.File) error {
	if err := unix.Mount(fdPath(s.file), fdPath(target), "", unix.MS_BIND, ""); err != nil {
		return err
	}
	flags := uintptr(unix.MS_BIND | unix.MS_REMOUNT | unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC)
	if s.readOnly {
		flags |= unix.MS_RDONLY
	}
	top, err := walk(dir, name, unix.O_PATH)
	if err != nil {
		return err
	}
	defer top.Close()
	if err := unix.Mount("", fdPath(top), "", flags, ""); err != nil {
		return errors.Join(err, unmount(dir, name))
	}
	return nil
}

// seen is a directory entry.
type seen struct {
	mounted  bool
	stat     unix.Stat_t
	readOnly bool
}

// lookEntry returns the directory entry of a name, without following symbolic links.
func lookEntry(dir *os.File, name string) (seen, error) {
	f, err := walk(dir, name, unix.O_PATH|unix.O_NOFOLLOW)
	if err != nil {
		return seen{}, err
	}
	defer f.Close()
	return inspect(f)
}

// inspect returns what an open file is.
func inspect(f *os.File) (seen, error) {
	var (
		out seen
		stx unix.Statx_t
		sfs unix.Statfs_t
	)
	if err := unix.Fstat(int(f.Fd()), &out.stat); err != nil {
		return out, err
	}
	if err := unix.Statx(int(f.Fd()), "", unix.AT_EMPTY_PATH, unix.STATX_BASIC_STATS, &stx); err != nil {
		return out, err
	}
	if stx.Attributes_mask&unix.STATX_ATTR_MOUNT_ROOT == 0 {
		return out, fmt.Errorf("mounts cannot be detected; use Linux 5.8 or later: %w", domain.ErrUnsupported)
	}
	out.mounted = stx.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0
	err := unix.Fstatfs(int(f.Fd()), &sfs)
	out.readOnly = sfs.Flags&unix.ST_RDONLY != 0
	return out, err
}

// is reports whether the entry is a mount of the source.
func (s seen) is(of *source) bool {
	return s.mounted && s.stat.Dev == of.stat.Dev && s.stat.Ino == of.stat.Ino && (s.readOnly || !of.readOnly)
}

// unmount removes all mounts on a name.
func unmount(dir *os.File, name string) error {
	if err := checkName(name); err != nil {
		return err
	}
	for {
		s, err := lookEntry(dir, name)
		switch {
		case errors.Is(err, domain.ErrNotReady), errors.Is(err, domain.ErrInvalid):
			return nil // not found, or a symbolic link: not a mount
		case err != nil || !s.mounted:
			return err
		}
		// A busy mount disappears when its last user closes it.
		if err := unix.Unmount(fdPath(dir)+"/"+name, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil {
			return fmt.Errorf("unmounting %s in %s: %w", name, dir.Name(), err)
		}
	}
}
