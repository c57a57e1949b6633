// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/virtloom/virtloom/domain"
)

// Root looks up device nodes in the file system of a process. Symbolic links are followed, as QEMU
// does, but never out of that file system.
type Root struct {
	// PID is the process. Defaults to this one.
	PID int
}

func (r Root) open() (*os.File, error) {
	who := "self"
	if r.PID != 0 {
		who = strconv.Itoa(r.PID)
	}
	return os.OpenFile(filepath.Join("/proc", who, "root"), unix.O_PATH|unix.O_DIRECTORY, 0)
}

// in opens a path in the file system of the process.
func (r Root) in(path string, flags uint64) (*os.File, error) {
	root, err := r.open()
	if err != nil {
		return nil, err
	}
	defer root.Close()
	fd, err := unix.Openat2(int(root.Fd()), path, &unix.OpenHow{
		Flags: flags | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS,
	})
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), path), nil
}

// Node implements [Devices].
func (r Root) Node(path string) (Node, error) {
	f, err := r.in(path, unix.O_PATH)
	if errors.Is(err, os.ErrNotExist) {
		return Node{}, notReady(path, err)
	}
	if err != nil {
		return Node{}, fmt.Errorf("device %s: %w", path, err)
	}
	defer f.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return Node{}, fmt.Errorf("device %s: %w", path, err)
	}
	n := Node{Major: unix.Major(st.Rdev), Minor: unix.Minor(st.Rdev)}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFBLK:
		n.Kind = Block
	case unix.S_IFCHR:
		n.Kind = Char
	default:
		return Node{}, fmt.Errorf("%s is not a device node: %w", path, domain.ErrInvalid)
	}
	return n, nil
}

// List implements [Devices].
func (r Root) List(dir string) ([]string, error) {
	f, err := r.in(dir, unix.O_RDONLY|unix.O_DIRECTORY)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("listing devices in %s: %w", dir, err)
	}
	defer f.Close()
	entries, err := f.ReadDir(0)
	if err != nil {
		return nil, fmt.Errorf("listing devices in %s: %w", dir, err)
	}
	var out []string
	for _, e := range entries {
		if e.Type()&os.ModeDevice != 0 {
			out = append(out, filepath.Join(dir, e.Name()))
		}
	}
	return out, nil
}
