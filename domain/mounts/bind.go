// SPDX-License-Identifier: Apache-2.0

package mounts

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/virtloom/virtloom/domain"
)

// restrictions are those of every mount: what a disk holds is data.
const restrictions = unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV | unix.MOUNT_ATTR_NOEXEC

// source is a file to be mounted: the mount, where the kernel can make one that is
// nowhere yet, and the file.
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

// newSource makes a mount of an open regular file; it is called in the namespace of
// that file, and takes the file over if there is no error.
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

// detached is a mount of an open file that is in no namespace.
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

// bind mounts the source over a file; it is called in the namespace of that file.
func (s *source) bind(dir *os.File, name string, target *os.File) error {
	if s.tree != nil {
		return unix.MoveMount(int(s.tree.Fd()), "", int(target.Fd()), "", unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH)
	}
	return s.bindByName(dir, name, target)
}

// bindByName does the same for kernels before 5.12, within one namespace: the mount
// is there a moment before it is restricted.
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

// seen is what is under a name.
type seen struct {
	mounted  bool
	stat     unix.Stat_t
	readOnly bool
}

// look tells what is under a name in a folder, links not followed.
func look(dir *os.File, name string) (seen, error) {
	f, err := walk(dir, name, unix.O_PATH|unix.O_NOFOLLOW)
	if err != nil {
		return seen{}, err
	}
	defer f.Close()
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
		return out, fmt.Errorf("mounts cannot be told from files; use Linux 5.8 or later: %w", domain.ErrUnsupported)
	}
	out.mounted = stx.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0
	err = unix.Fstatfs(int(f.Fd()), &sfs)
	out.readOnly = sfs.Flags&unix.ST_RDONLY != 0
	return out, err
}

// is tells whether that is a mount of the source.
func (s seen) is(of *source) bool {
	return s.mounted && s.stat.Dev == of.stat.Dev && s.stat.Ino == of.stat.Ino && (s.readOnly || !of.readOnly)
}

// unmount takes away all that is mounted under a name.
func unmount(dir *os.File, name string) error {
	if err := checkName(name); err != nil {
		return err
	}
	for {
		s, err := look(dir, name)
		switch {
		case errors.Is(err, domain.ErrNotReady), errors.Is(err, domain.ErrInvalid):
			return nil // nothing, or a link, is no mount
		case err != nil || !s.mounted:
			return err
		}
		// A mount that is still in use goes when its last user does.
		if err := unix.Unmount(fdPath(dir)+"/"+name, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil {
			return fmt.Errorf("unmount %s in %s: %w", name, dir.Name(), err)
		}
	}
}
