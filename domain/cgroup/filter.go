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

// Filter keeps what guests may open to what they have, where each has a launcher in a
// container of its own.
type Filter struct {
	// Hierarchy is where cgroups are.
	Hierarchy Hierarchy
	// PID is a process in the guest's container.
	PID func(vmi *v1.VirtualMachineInstance) (int, error)
}

// Allow lets the guest's container open the devices of the domains, and those that every
// guest may use, and no others. Device nodes are looked up where the container sees them.
// While one is missing nothing is changed.
func (f Filter) Allow(_ context.Context, vmi *v1.VirtualMachineInstance, domains ...*libvirtxml.Domain) error {
	pid, err := f.PID(vmi)
	if err == nil && pid < 1 {
		err = fmt.Errorf("it is in a PID namespace that this process does not see: %w", domain.ErrInvalid)
	}
	if err != nil {
		return fmt.Errorf("cgroup: launcher of guest %s: %w", vmi.UID, err)
	}
	dir, err := f.Hierarchy.Of(pid)
	if errors.Is(err, domain.ErrNotFound) {
		return fmt.Errorf("%w: %w", domain.ErrNotReady, err) // it has just ended, and its guest with it
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
