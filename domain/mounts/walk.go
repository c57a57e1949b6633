// SPDX-License-Identifier: Apache-2.0

package mounts

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/virtloom/virtloom/domain"
)

// Limits for paths and names: of the kernel, and of attempts.
const (
	maxPath = 4095
	maxName = 255
	// maxRenamed bounds the attempts to open a path of which parts are renamed meanwhile.
	maxRenamed = 32
)

// checkPath rejects a path that is not a sequence of plain names.
func checkPath(path string) error {
	names := strings.Split(strings.TrimPrefix(path, "/"), "/")
	bad := slices.ContainsFunc(names, func(n string) bool {
		return n == "" || n == "." || n == ".." || len(n) > maxName || strings.ContainsRune(n, 0)
	})
	if bad || len(path) > maxPath {
		return fmt.Errorf("path %.80q is not made of plain names: %w", path, domain.ErrInvalid)
	}
	return nil
}

// checkName rejects anything but the name of one file.
func checkName(name string) error {
	if strings.Contains(name, "/") {
		return fmt.Errorf("name %.80q is a path: %w", name, domain.ErrInvalid)
	}
	return checkPath(name)
}

// walk opens path below a directory, without following symbolic links.
func walk(dir *os.File, path string, flags uint64) (*os.File, error) {
	if err := checkPath(path); err != nil {
		return nil, err
	}
	return openat(dir, path, flags, unix.RESOLVE_IN_ROOT|unix.RESOLVE_NO_SYMLINKS|unix.RESOLVE_NO_MAGICLINKS)
}

// openFollowing opens path below a directory, following symbolic links that stay below it. It is for
// directories that only the kubelet writes.
func openFollowing(root *os.File, path string, flags uint64) (*os.File, error) {
	return openat(root, path, flags, unix.RESOLVE_IN_ROOT|unix.RESOLVE_NO_MAGICLINKS)
}

func openat(dir *os.File, path string, flags, resolve uint64) (*os.File, error) {
	how := unix.OpenHow{Flags: flags | unix.O_CLOEXEC, Resolve: resolve}
	if flags&unix.O_CREAT != 0 {
		how.Mode = 0o600
	}
	for renamed := 0; ; {
		fd, err := unix.Openat2(int(dir.Fd()), strings.TrimPrefix(path, "/"), &how)
		switch {
		case err == nil:
			return os.NewFile(uintptr(fd), path), nil
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.EAGAIN) && renamed < maxRenamed: // a part of the path was renamed meanwhile
			renamed++
			continue
		}
		return nil, explain(dir.Name(), path, err)
	}
}

// explain maps an error of walk to an error of this package.
func explain(dir, path string, err error) error {
	switch {
	case errors.Is(err, unix.ENOENT):
		return fmt.Errorf("%s in %s does not exist: %w", path, dir, domain.ErrNotReady)
	case errors.Is(err, unix.EAGAIN):
		return fmt.Errorf("%s in %s is renamed all the time: %w", path, dir, domain.ErrNotReady)
	case errors.Is(err, unix.ELOOP):
		return fmt.Errorf("%s in %s contains a symbolic link: %w", path, dir, domain.ErrInvalid)
	case errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.EXDEV), errors.Is(err, unix.ENAMETOOLONG), errors.Is(err, unix.EEXIST):
		return fmt.Errorf("%s in %s: %w: %w", path, dir, domain.ErrInvalid, err)
	case errors.Is(err, unix.ENOSYS):
		return fmt.Errorf("paths cannot be resolved safely; use Linux 5.8 or later: %w: %w", domain.ErrUnsupported, err)
	}
	return fmt.Errorf("%s in %s: %w", path, dir, err)
}

// isKind verifies the type of an open file, unix.S_IFREG or the like.
func isKind(f *os.File, kind uint32) (unix.Stat_t, error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return st, fmt.Errorf("%s: %w", f.Name(), err)
	}
	if st.Mode&unix.S_IFMT != kind {
		return st, fmt.Errorf("%s is a %s, not a %s: %w", f.Name(), kinds[st.Mode&unix.S_IFMT], kinds[kind], domain.ErrInvalid)
	}
	return st, nil
}

var kinds = map[uint32]string{
	unix.S_IFREG: "regular file", unix.S_IFDIR: "directory", unix.S_IFLNK: "link", unix.S_IFIFO: "pipe",
	unix.S_IFSOCK: "socket", unix.S_IFBLK: "block device", unix.S_IFCHR: "character device",
}

// names lists a directory.
func names(dir *os.File) ([]string, error) {
	// The open file may be an O_PATH one.
	f, err := openat(dir, ".", unix.O_RDONLY|unix.O_DIRECTORY, unix.RESOLVE_IN_ROOT)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	out, err := f.Readdirnames(0)
	slices.Sort(out)
	return out, err
}
