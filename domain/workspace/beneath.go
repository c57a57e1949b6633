// SPDX-License-Identifier: Apache-2.0

package workspace

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/virtloom/virtloom/domain/convert"
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
	return openBeneath(folder, name, flags, 0)
}

// openOwn does that for an entry that is no mount, but part of the folder's file system.
func openOwn(folder *os.File, name string, flags uint64) (*os.File, error) {
	return openBeneath(folder, name, flags, unix.RESOLVE_NO_XDEV)
}

func openBeneath(folder *os.File, name string, flags, resolve uint64) (*os.File, error) {
	how := unix.OpenHow{
		Flags:   flags | unix.O_CLOEXEC | unix.O_NOFOLLOW | unix.O_NONBLOCK | unix.O_NOCTTY,
		Resolve: resolve | unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS,
	}
	if flags&unix.O_PATH != 0 { // takes no others
		how.Flags &^= unix.O_NONBLOCK | unix.O_NOCTTY
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

// open opens a disk that its tenant may replace, for reading: a regular file, or a block device. The
// path of a device that is not in a Pod is the administrator's, and may contain links.
func (v volume) open(ctx context.Context, src *convert.DiskSource) (*os.File, error) {
	kind, otherwise := uint32(unix.S_IFREG), errNotRegular
	if src.Block {
		kind, otherwise = unix.S_IFBLK, errNotBlock
	}
	f, err := v.opened(ctx, src)
	if err != nil {
		return nil, err
	}
	return isType(f, kind, otherwise)
}

func (v volume) opened(ctx context.Context, src *convert.DiskSource) (*os.File, error) {
	if src.Block && src.Inside == "" {
		return os.OpenFile(src.Path, unix.O_RDONLY|unix.O_NONBLOCK, 0)
	}
	folder, err := v.folder(ctx, src)
	if err != nil {
		return nil, err
	}
	defer folder.Close()
	if v.inPod(src) {
		return openOwn(folder, filepath.Base(src.Path), unix.O_RDONLY)
	}
	return openIn(folder, filepath.Base(src.Path), unix.O_RDONLY)
}

// folder opens the folder of a disk.
func (v volume) folder(ctx context.Context, src *convert.DiskSource) (*os.File, error) {
	if v.inPod(src) {
		return v.pods.Folder(ctx, v.vmi, filepath.Dir(src.Path))
	}
	return openFolder(src.Path)
}

// inPod reports whether a disk is reached through the launcher Pod: it has no path on the node.
func (v volume) inPod(src *convert.DiskSource) bool {
	return v.pods != nil && src.Inside != "" && src.Inside == src.Path
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

// appear makes a file, whole or not at all, where there is none of that name in the folder. The
// leftovers of an earlier attempt are replaced. Files that others put under either name meanwhile
// are neither written to nor linked.
func appear(folder *os.File, name, tmp string, fill func(f *os.File) error) error {
	dir := int(folder.Fd())
	if err := unix.Unlinkat(dir, tmp, 0); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove %s: %w", tmp, err)
	}
	f, err := openIn(folder, tmp, unix.O_CREAT|unix.O_EXCL|unix.O_RDWR)
	if err != nil {
		return err
	}
	defer func() { _ = errors.Join(f.Close(), unix.Unlinkat(dir, tmp, 0)) }()
	if err := fill(f); err != nil {
		return err
	}
	// A link, unlike a rename, never replaces a file that was made meanwhile.
	err = unix.Linkat(unix.AT_FDCWD, itself(f), dir, name, unix.AT_SYMLINK_FOLLOW)
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("name the file %s: %w", name, err)
	}
	return nil
}

// maxCopied bounds the copy of a file: of an image's kernel, or of a disk that holds no data of the
// guest yet.
const maxCopied = 512 << 20

// errTooLarge is the error of a file that is not copied.
var errTooLarge = fmt.Errorf("larger than %d MiB", maxCopied>>20)

// copyTo copies a file, of limited size, until ctx ends.
func copyTo(ctx context.Context, to io.Writer, from io.Reader) error {
	const piece = 1 << 20
	for left := int64(maxCopied); ; {
		if err := ctx.Err(); err != nil {
			return err
		}
		n, err := io.CopyN(to, from, min(piece, left+1))
		left -= n
		switch {
		case left < 0:
			return errTooLarge
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
	}
}
