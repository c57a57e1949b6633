// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/cilium/ebpf/rlimit"
	"golang.org/x/sys/unix"

	"github.com/virtloom/virtloom/domain"
)

// license is the license of the program, which the kernel requires.
const license = "Apache-2.0"

// Set replaces the device filter of a cgroup: its processes, and those of its child cgroups, may
// open the devices that the rules allow and no others. It reports whether that changed the filter.
// dir is the directory of the cgroup, see [Hierarchy.Of]; the root of a hierarchy is rejected.
// After an error, either nothing has changed or some of what the old filter allowed, and some of what
// the rules allow, is allowed; calling Set again corrects that.
func Set(dir string, rules []Rule) (changed bool, err error) {
	for _, r := range rules {
		if err := r.check(); err != nil {
			return false, err
		}
	}
	fd, v1, err := openCgroup(dir)
	if err != nil {
		return false, err
	}
	defer fd.Close()
	set := setProgram
	if v1 {
		set = setLists
	}
	if changed, err = set(fd, rules); err != nil {
		if errors.Is(err, ebpf.ErrNotSupported) {
			err = errors.Join(domain.ErrUnsupported, err)
		}
		return changed, fmt.Errorf("cgroup: device filter of %s: %w", dir, err)
	}
	return changed, nil
}

// setProgram sets the filter of a cgroup of version 2.
func setProgram(fd *os.File, rules []Rule) (changed bool, err error) {
	if err := rlimit.RemoveMemlock(); err != nil {
		return false, fmt.Errorf("removing the memory lock limit: %w", err)
	}
	next, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: "virtloom_device", Type: ebpf.CGroupDevice, Instructions: program(rules), License: license,
	})
	if err != nil {
		return false, fmt.Errorf("loading it: %w", err)
	}
	defer func() { err = errors.Join(err, next.Close()) }()
	old, err := attached(fd)
	if err != nil {
		return false, fmt.Errorf("querying attached filters: %w", err)
	}
	defer func() {
		for _, p := range old {
			err = errors.Join(err, p.Close())
		}
	}()
	if len(old) == 1 && alike(old[0], next) {
		return false, nil
	}
	if err := attach(fd, next, old); err != nil {
		return false, fmt.Errorf("attaching it: %w", err)
	}
	return true, nil
}

// openCgroup opens the directory of a cgroup that may have a filter, of either version.
func openCgroup(dir string) (fd *os.File, v1 bool, err error) {
	fd, err = os.OpenFile(dir, unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		if errors.Is(err, os.ErrNotExist) {
			err = errors.Join(domain.ErrNotFound, err)
		}
		return nil, false, fmt.Errorf("cgroup: %w", err)
	}
	var st unix.Statfs_t
	err = unix.Fstatfs(int(fd.Fd()), &st)
	switch v1 = st.Type == unix.CGROUP_SUPER_MAGIC; {
	case err != nil || !v1 && st.Type != unix.CGROUP2_SUPER_MAGIC:
		err = fmt.Errorf("not the directory of a cgroup: %w", domain.ErrUnsupported)
	default:
		err = below(fd, v1)
	}
	if err != nil {
		fd.Close()
		return nil, false, fmt.Errorf("cgroup: %s: %w", dir, err)
	}
	return fd, v1, nil
}

// below checks that a cgroup is neither the root of the hierarchy nor the root of the part visible
// to this process, which contains the process itself.
func below(fd *os.File, v1 bool) error {
	refused := fmt.Errorf("a filter for all processes is forbidden; use the cgroup of a single container: %w", domain.ErrInvalid)
	// Every cgroup of version 2 except the root has the one file, and the root of version 1 alone has the other.
	file, inRoot := "cgroup.events", false
	if v1 {
		file, inRoot = "release_agent", true
	}
	if found := unix.Faccessat(int(fd.Fd()), file, unix.F_OK, 0) == nil; found == inRoot {
		return refused
	}
	var st unix.Statx_t
	if err := unix.Statx(int(fd.Fd()), "", unix.AT_EMPTY_PATH, unix.STATX_BASIC_STATS, &st); err != nil {
		return err
	}
	if st.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0 {
		return refused
	}
	return nil
}

// attached returns the filters attached to the cgroup itself.
func attached(fd *os.File) ([]*ebpf.Program, error) {
	found, err := link.QueryPrograms(link.QueryOptions{Target: int(fd.Fd()), Attach: ebpf.AttachCGroupDevice})
	if err != nil {
		return nil, err
	}
	var out []*ebpf.Program
	for _, f := range found.Programs {
		p, err := ebpf.NewProgramFromID(f.ID)
		if err != nil {
			for _, p := range out {
				err = errors.Join(err, p.Close())
			}
			return nil, err
		}
		out = append(out, p)
	}
	return out, nil
}

// alike reports whether two programs have the same instructions.
func alike(a, b *ebpf.Program) bool {
	one, errOne := a.Info()
	two, errTwo := b.Info()
	return errOne == nil && errTwo == nil && one.Tag != "" && one.Tag == two.Tag
}

// attach replaces the old programs. All attached programs have to allow an access, so that at no
// time is there no filter, nor one that denies what both lists allow.
func attach(fd *os.File, next *ebpf.Program, old []*ebpf.Program) error {
	o := link.RawAttachProgramOptions{Target: int(fd.Fd()), Program: next, Attach: ebpf.AttachCGroupDevice, Flags: unix.BPF_F_ALLOW_MULTI}
	if len(old) == 0 {
		return link.RawAttachProgram(o)
	}
	o.Anchor = link.ReplaceProgram(old[0])
	err := link.RawAttachProgram(o)
	for _, flags := range []uint32{unix.BPF_F_ALLOW_OVERRIDE, 0} {
		if err == nil || len(old) > 1 {
			break
		}
		// A runtime that attached its filter exclusively allows no second one: replace it.
		o.Anchor, o.Flags = nil, flags
		if link.RawAttachProgram(o) == nil {
			err = nil
		}
	}
	if err != nil {
		return err
	}
	for _, p := range old[1:] {
		err = errors.Join(err, link.RawDetachProgram(link.RawDetachProgramOptions{Target: o.Target, Program: p, Attach: o.Attach}))
	}
	return err
}

// cgroupPath joins a path to the mount point without leaving it.
func cgroupPath(mount, path string) string { return filepath.Join(mount, filepath.Clean("/"+path)) }
