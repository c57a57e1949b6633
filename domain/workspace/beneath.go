// SPDX-License-Identifier: Apache-2.0

package workspace

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// A tenant can replace what lies in a claim, or in a folder of a launcher Pod, at any moment: by a
// link to a file of the node, for example. The agent, which is root, therefore opens a file once,
// without following a link, checks the open file, and uses that: never the name again.

// errNotRegular is the error of a disk that is not a regular file, links included.
var errNotRegular = errors.New("not a regular file")

// errNotBlock is the error of a device that is not a block device.
var errNotBlock = errors.New("not a block device")

// openFolder opens the folder of a file. The folder itself, and those above, belong to the
// administrator or the kubelet.
func openFolder(path string) (*os.File, error) {
	return os.OpenFile(filepath.Dir(path), unix.O_PATH|unix.O_DIRECTORY, 0)
}

// maxRenamed bounds the attempts to open a file whose folder is renamed meanwhile: its owner may also hold a lease on it
// for most of a minute, and take another one then.
const maxRenamed = 32

// openIn opens the entry of that name in a folder without following a link, and without blocking on
// another process.
func openIn(folder *os.File, name string, flags uint64) (*os.File, error) {
	how := unix.OpenHow{
		Flags:   flags | unix.O_CLOEXEC | unix.O_NOFOLLOW | unix.O_NONBLOCK | unix.O_NOCTTY,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS,
	}
	if flags&unix.O_CREAT != 0 {
		how.Mode = 0o600
	}
	for renamed := 0; ; {
		fd, err := unix.Openat2(int(folder.Fd()), name, &how)
		switch {
		case err == nil:
			return os.NewFile(uintptr(fd), filepath.Join(folder.Name(), name)), nil
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.EAGAIN) && renamed < maxRenamed: // a concurrent rename, or a lease on the file
			renamed++
			continue
		case errors.Is(err, unix.ELOOP), errors.Is(err, unix.ENXIO): // a link, a socket
			err = errNotRegular
		}
		return nil, &os.PathError{Op: "open", Path: filepath.Join(folder.Name(), name), Err: err}
	}
}

// openDisk opens an image that its tenant may replace, for reading: a regular file.
func openDisk(path string) (*os.File, error) {
	f, err := openTenants(path)
	if err != nil {
		return nil, err
	}
	return isType(f, unix.S_IFREG, errNotRegular)
}

// openDevice opens a block device for reading: one in a folder of a launcher Pod, or one whose path
// is the administrator's and may contain links.
func openDevice(path string, tenants bool) (f *os.File, err error) {
	if tenants {
		f, err = openTenants(path)
	} else {
		f, err = os.OpenFile(path, unix.O_RDONLY|unix.O_NONBLOCK, 0)
	}
	if err != nil {
		return nil, err
	}
	return isType(f, unix.S_IFBLK, errNotBlock)
}

// openTenants opens a file that a tenant may replace, for reading.
func openTenants(path string) (*os.File, error) {
	folder, err := openFolder(path)
	if err != nil {
		return nil, err
	}
	defer folder.Close()
	return openIn(folder, filepath.Base(path), unix.O_RDONLY)
}

// isType returns the file if it is of that type, and closes it otherwise.
func isType(f *os.File, kind uint32, otherwise error) (*os.File, error) {
	var st unix.Stat_t
	err := unix.Fstat(int(f.Fd()), &st)
	if err == nil && st.Mode&unix.S_IFMT != kind {
		err = otherwise
	}
	if err != nil {
		return nil, errors.Join(&os.PathError{Op: "open", Path: f.Name(), Err: err}, f.Close())
	}
	return f, nil
}

// itself is a path that means an open file, whatever its name leads to by now.
func itself(f *os.File) string { return fmt.Sprintf("/proc/self/fd/%d", f.Fd()) }

// lengthOf returns the size of a file or a device in bytes.
func lengthOf(f *os.File) (int64, error) {
	n, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return 0, fmt.Errorf("workspace: size of %s: %w", f.Name(), err)
	}
	return n, nil
}
