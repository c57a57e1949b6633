// SPDX-License-Identifier: Apache-2.0

package mounts

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
	v1 "kubevirt.io/api/core/v1"
)

// lockedBeside is how much memory a guest with host devices may lock beside its own: libvirt asks for
// 1 GiB, for the memory of devices.
const lockedBeside = 2 << 30

// lockMemory lets the launcher of a VMI with host devices lock the guest's memory, which devices
// access directly: libvirt, which has no privileges in a Pod, cannot raise the limit for QEMU above
// its own. Limits are inherited, so the launcher gets it for a libvirt that is restarted, and its
// children for the one that runs. An agent without CAP_SYS_RESOURCE leaves the limits as they are:
// whether they suffice is then up to libvirt, whose error says so.
func lockMemory(vmi *v1.VirtualMachineInstance, pid int, limit prlimit) error {
	if !hasHostDevices(vmi) {
		return nil
	}
	memory := guestMemory(vmi)
	if memory <= 0 {
		return nil // the guest is refused elsewhere
	}
	want := uint64(memory) + lockedBeside
	var errs []error
	for _, p := range append([]int{pid}, children(pid)...) {
		errs = append(errs, limit.raise(p, want))
	}
	return errors.Join(errs...)
}

// hasHostDevices reports whether a VMI has devices that may access its memory directly.
func hasHostDevices(vmi *v1.VirtualMachineInstance) bool {
	d := &vmi.Spec.Domain.Devices
	for i := range d.Interfaces {
		if d.Interfaces[i].SRIOV != nil {
			return true
		}
	}
	return len(d.HostDevices)+len(d.GPUs) > 0
}

// guestMemory returns the most memory that the guest may have.
func guestMemory(vmi *v1.VirtualMachineInstance) int64 {
	d := &vmi.Spec.Domain
	most := max(d.Resources.Requests.Memory().Value(), d.Resources.Limits.Memory().Value())
	if d.Memory == nil {
		return most
	}
	if d.Memory.Guest != nil {
		most = max(most, d.Memory.Guest.Value())
	}
	if d.Memory.MaxGuest != nil {
		most = max(most, d.Memory.MaxGuest.Value())
	}
	return most
}

// children returns the child processes of a process, as far as there are any.
func children(pid int) (out []int) {
	lists, _ := filepath.Glob(filepath.Join("/proc", strconv.Itoa(pid), "task/*/children")) // the pattern is valid
	for _, list := range lists {
		text, err := os.ReadFile(list)
		if err != nil {
			continue // the thread has ended
		}
		for _, field := range strings.Fields(string(text)) {
			if child, err := strconv.Atoi(field); err == nil {
				out = append(out, child)
			}
		}
	}
	return out
}

// prlimit is the system call for the limit of locked memory of a process.
type prlimit func(pid int, resource int, next, now *unix.Rlimit) error

// raise raises the limit of a process, unless it is higher or the process has ended.
func (limit prlimit) raise(pid int, want uint64) error {
	var now unix.Rlimit
	err := limit(pid, unix.RLIMIT_MEMLOCK, nil, &now)
	if err == nil && now.Max < want {
		err = limit(pid, unix.RLIMIT_MEMLOCK, &unix.Rlimit{Cur: want, Max: want}, nil)
	}
	if err != nil && !errors.Is(err, unix.ESRCH) && !errors.Is(err, unix.EPERM) {
		return fmt.Errorf("raising the limit of locked memory of process %d: %w", pid, err)
	}
	return nil
}
