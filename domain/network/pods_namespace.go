// SPDX-License-Identifier: Apache-2.0

package network

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/domain"
)

// namespace opens the network namespace of the VMI's launcher. The launcher is asked for again once
// it is open, so it is not that of a process that got the number of a launcher that has ended. It
// is neither that of this process nor that of the node, whose network must never change for a VMI.
func (p Pods) namespace(vmi *v1.VirtualMachineInstance) (*os.File, error) {
	if p.PID == nil {
		return nil, errors.New("network: Pods.PID is not set")
	}
	pid, err := p.PID(vmi)
	if err != nil {
		return nil, fmt.Errorf("network: launcher of %s/%s: %w", vmi.Namespace, vmi.Name, err)
	}
	if pid < 1 {
		return nil, fmt.Errorf("network: the launcher of %s/%s is not visible in this PID namespace: %w", vmi.Namespace, vmi.Name, domain.ErrInvalid)
	}
	process, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return nil, fmt.Errorf("network: launcher of %s/%s: %w: %w", vmi.Namespace, vmi.Name, domain.ErrNotReady, err)
	}
	defer unix.Close(process)
	ns, err := os.Open(fmt.Sprintf("/proc/%d/ns/net", pid))
	if errors.Is(err, fs.ErrNotExist) {
		err = errors.Join(domain.ErrNotReady, err)
	}
	if err != nil {
		return nil, fmt.Errorf("network: launcher of %s/%s: %w", vmi.Namespace, vmi.Name, err)
	}
	if err := errors.Join(p.still(vmi, pid, process), p.separate(ns)); err != nil {
		ns.Close()
		return nil, fmt.Errorf("network: launcher of %s/%s: %w", vmi.Namespace, vmi.Name, err)
	}
	return ns, nil
}

// still checks that the process is the launcher, and runs.
func (p Pods) still(vmi *v1.VirtualMachineInstance, pid, process int) error {
	now, err := p.PID(vmi)
	if err != nil {
		return err
	}
	if now != pid {
		return fmt.Errorf("it has become another process: %w", domain.ErrNotReady)
	}
	if err := unix.PidfdSendSignal(process, 0, nil, 0); err != nil {
		return fmt.Errorf("it has ended: %w: %w", domain.ErrNotReady, err)
	}
	return nil
}

// separate checks that a namespace is that of a Pod of its own.
func (p Pods) separate(ns *os.File) error {
	have, err := ns.Stat()
	if err != nil {
		return err
	}
	// Of this thread: another one may be in the namespace of a launcher at the moment, the first one, which /proc/self means, as well.
	for _, path := range []string{"/proc/thread-self/ns/net", cmp.Or(p.Node, "/proc/1/ns/net")} {
		// A namespace that cannot be inspected may be the same.
		other, err := os.Stat(path)
		if err != nil {
			return err
		}
		if os.SameFile(have, other) {
			return fmt.Errorf("its Pod has the network of the node, which is not changed; remove hostNetwork: %w", domain.ErrInvalid)
		}
	}
	return nil
}
