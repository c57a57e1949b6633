// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"context"
	"errors"
	"fmt"

	v1 "kubevirt.io/api/core/v1"
	"libvirt.org/go/libvirtxml"

	"github.com/virtloom/virtloom/domain"
)

// Filter restricts guests to their devices, where each has a launcher in a container of its own.
// Its methods may be called concurrently.
type Filter struct {
	// Hierarchy is the cgroup hierarchy of the node.
	Hierarchy Hierarchy
	// PID returns a process in the container of the VMI.
	PID func(vmi *v1.VirtualMachineInstance) (int, error)
}

// Allow lets the container of the VMI open the devices of the domains and the default devices of
// [Default], and no others. Device nodes are looked up in the mount namespace of the container. If
// one is missing, nothing is changed.
func (f Filter) Allow(_ context.Context, vmi *v1.VirtualMachineInstance, domains ...*libvirtxml.Domain) error {
	pid, err := f.PID(vmi)
	if err == nil && pid < 1 {
		err = fmt.Errorf("its process is not visible in this PID namespace: %w", domain.ErrInvalid)
	}
	if err != nil {
		return fmt.Errorf("cgroup: launcher of VMI %s: %w", vmi.UID, err)
	}
	dir, err := f.Hierarchy.Of(pid)
	if errors.Is(err, domain.ErrNotFound) {
		return fmt.Errorf("%w: %w", domain.ErrNotReady, err) // the launcher has just exited, and its guest with it
	}
	if err != nil {
		return err
	}
	rules, err := Rules(Root{PID: pid}, domains...)
	if err != nil {
		return err
	}
	_, err = Set(dir, rules)
	return err
}
