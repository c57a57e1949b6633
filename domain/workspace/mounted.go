// SPDX-License-Identifier: Apache-2.0

package workspace

import (
	"context"
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/types"
	v1 "kubevirt.io/api/core/v1"
	"libvirt.org/go/libvirtxml"

	"github.com/virtloom/virtloom/domain/convert"
	"github.com/virtloom/virtloom/domain/status"
)

// Volumes provides the disks that Pods hold for VMIs, where the kubelet runs a Pod for each VMI:
// package domain/mounts. Its methods are idempotent. While a volume is not there yet the error
// wraps [domain.ErrNotReady].
type Volumes interface {
	// ContainerDisk returns the read-only image of the containerDisk that is the volume of that
	// index: Path and Inside of the result are set.
	ContainerDisk(ctx context.Context, vmi *v1.VirtualMachineInstance, index int) (convert.DiskSource, error)
	// Hotplugged returns the location of a volume that was hotplugged after the launcher Pod was
	// made: Path, Inside and Block of the result are set. It is called once a Pod carries the
	// volume to the node.
	Hotplugged(ctx context.Context, vmi *v1.VirtualMachineInstance, volume *v1.Volume) (convert.DiskSource, error)
	// Retain removes hotplugged volumes but those of these names: the others are neither wanted nor
	// in use any more.
	Retain(ctx context.Context, uid types.UID, names []string) error
	// Release removes all volumes of the VMI; one that has none is a success.
	Release(ctx context.Context, uid types.UID) error
}

// Devices lets guests open their devices, where device access is restricted: package cgroup.
type Devices interface {
	// Allow lets the processes of the VMI's launcher open all devices of the domains, and no
	// others: those of the live domain, and of the desired one. A domain may be nil. While a device
	// is missing the error wraps [domain.ErrNotReady].
	Allow(ctx context.Context, vmi *v1.VirtualMachineInstance, domains ...*libvirtxml.Domain) error
}

// Networks prepares a VMI's networks on the node: package domain/network. Its methods are
// idempotent.
type Networks interface {
	// Prepare returns the prepared network of each interface, by its name; nothing for one the
	// hypervisor connects to the bridge. While a network is missing the error wraps
	// [domain.ErrNotReady]; one left unfinished is [domain.ErrBroken].
	Prepare(ctx context.Context, vmi *v1.VirtualMachineInstance) (map[string]convert.Link, error)
	// Release removes the VMI's networks; one that has none is a success.
	Release(ctx context.Context, uid types.UID) error
}

// HostDevices returns the host devices that the node has allocated to a VMI, by resource: package
// hostdevice. While its launcher is not there the error wraps [domain.ErrNotReady].
type HostDevices func(vmi *v1.VirtualMachineInstance) (map[string][]convert.HostDevice, error)

// attached is what other parts of the node make for VMIs: networks, and volumes that Pods hold.
type attached struct{ *Workspace }

// networks prepares the VMI's networks.
func (w attached) networks(ctx context.Context, vmi *v1.VirtualMachineInstance, f *convert.Facts) error {
	for _, n := range vmi.Spec.Networks {
		f.Bridges[n.Name] = w.Bridge
	}
	if w.Networks == nil {
		return nil
	}
	links, err := w.Networks.Prepare(ctx, vmi)
	if named := (*convert.Error)(nil); errors.As(err, &named) {
		return named // it says which field, and what to do
	}
	if err != nil {
		return &convert.Error{Object: objectName(vmi), Reason: "networks are not ready on this node", Err: err}
	}
	f.Links = links
	return nil
}

// hostDevices finds out which host devices the VMI has.
func (w attached) hostDevices(vmi *v1.VirtualMachineInstance, f *convert.Facts) error {
	if w.HostDevices == nil {
		return nil
	}
	devices, err := w.HostDevices(vmi)
	if err != nil {
		return &convert.Error{Object: objectName(vmi), Reason: "cannot find out which host devices it has on this node", Err: err}
	}
	f.Devices = devices
	return nil
}

// release removes what other parts of the node have made for the VMI.
func (w attached) release(ctx context.Context, uid types.UID) error {
	var errs []error
	if w.Volumes != nil {
		errs = append(errs, w.Volumes.Release(ctx, uid))
	}
	if w.Networks != nil {
		errs = append(errs, w.Networks.Release(ctx, uid))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("workspace: release the volumes and networks of VMI %s: %w", uid, err)
	}
	return nil
}

// Retain removes unplugged volumes: those that the object names no more and that the live domain,
// if it is not nil, has released.
func (w *Workspace) Retain(ctx context.Context, vmi *v1.VirtualMachineInstance, live *libvirtxml.Domain) error {
	if w.Volumes == nil {
		return nil
	}
	names := status.VolumesOf(live)
	for i := range vmi.Spec.Volumes {
		names = append(names, vmi.Spec.Volumes[i].Name)
	}
	if err := w.Volumes.Retain(ctx, vmi.UID, names); err != nil {
		return fmt.Errorf("workspace: remove unplugged volumes of %s: %w", objectName(vmi), err)
	}
	return nil
}

// Allow lets the guest open the devices of the domains, and no others; see [Devices].
func (w *Workspace) Allow(ctx context.Context, vmi *v1.VirtualMachineInstance, domains ...*libvirtxml.Domain) error {
	if w.Devices == nil {
		return nil
	}
	if err := w.Devices.Allow(ctx, vmi, domains...); err != nil {
		return &convert.Error{Object: objectName(vmi), Reason: "cannot permit its devices on this node", Err: err}
	}
	return nil
}

// hotplugged returns the location of a volume that a Pod of its own carries.
func (w attached) hotplugged(ctx context.Context, v volume) (convert.DiskSource, error) {
	src, err := w.Volumes.Hotplugged(ctx, v.vmi, v.Volume)
	if err != nil {
		return convert.DiskSource{}, v.fault("name", fmt.Sprintf("cannot mount hotplugged volume %q", v.Name), "check the Pod that carries it", err)
	}
	return src, v.examine(ctx, &src)
}
