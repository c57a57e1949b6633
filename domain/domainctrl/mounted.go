// SPDX-License-Identifier: Apache-2.0

package domainctrl

import (
	"context"
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/types"
	v1 "kubevirt.io/api/core/v1"
	"libvirt.org/go/libvirtxml"

	"github.com/virtloom/virtloom/domain"
)

// Volumes gives guests the disks that Pods hold for them, where the kubelet runs a Pod
// for each guest: package domain/mounts. Its methods may be called again at any time
// and change nothing then. While something is not there yet the error wraps
// [domain.ErrNotReady].
type Volumes interface {
	// ContainerDisk returns where the image is, which nobody writes to, of the
	// containerDisk that is the volume of that index: Path and Inside of the result are
	// set.
	ContainerDisk(ctx context.Context, vmi *v1.VirtualMachineInstance, index int) (domain.DiskSource, error)
	// Hotplugged returns where the volume is that was plugged in after the guest's Pod
	// was made: Path, Inside and Block of the result are set. It is called once a Pod
	// carries the volume to the node.
	Hotplugged(ctx context.Context, vmi *v1.VirtualMachineInstance, volume *v1.Volume) (domain.DiskSource, error)
	// Retain takes volumes away that were plugged in, but for those of these names: the
	// others are neither wanted nor in use any more.
	Retain(ctx context.Context, uid types.UID, names []string) error
	// Release takes all of it away again; a guest that has nothing is a success.
	Release(ctx context.Context, uid types.UID) error
}

// Devices lets guests open the devices they have, where something keeps them from
// others: package cgroup.
type Devices interface {
	// Allow lets the processes of the guest's launcher open all devices of the domains,
	// and none besides: those of the domain that runs, and of the one it shall become.
	// A domain may be nil. While a device is not there the error wraps
	// [domain.ErrNotReady].
	Allow(ctx context.Context, vmi *v1.VirtualMachineInstance, domains ...*libvirtxml.Domain) error
}

// Networks gets the node ready to plug a guest's networks: package domain/network.
// Its methods may be called again at any time and change nothing then.
type Networks interface {
	// Prepare returns what there is for each interface, by its name; nothing for one the
	// hypervisor plugs into the bridge. While a network is missing the error wraps
	// [domain.ErrNotReady]; one that was begun and not finished is
	// [domain.ErrBroken].
	Prepare(ctx context.Context, vmi *v1.VirtualMachineInstance) (map[string]domain.Link, error)
	// Release takes away what was made; a guest for which nothing was is a success.
	Release(ctx context.Context, uid types.UID) error
}

// networks gets the guest's networks ready.
func (w *Workspace) networks(ctx context.Context, vmi *v1.VirtualMachineInstance, f *domain.Facts) error {
	for _, n := range vmi.Spec.Networks {
		f.Bridges[n.Name] = w.Bridge
	}
	if w.Networks == nil {
		return nil
	}
	links, err := w.Networks.Prepare(ctx, vmi)
	if err != nil {
		return &domain.Error{Object: objectName(vmi), Reason: "its networks are not ready on this node", Err: err}
	}
	f.Links = links
	return nil
}

// release takes away what other parts of the node have made for the guest.
func (w *Workspace) release(ctx context.Context, uid types.UID) error {
	var errs []error
	if w.Volumes != nil {
		errs = append(errs, w.Volumes.Release(ctx, uid))
	}
	if w.Networks != nil {
		errs = append(errs, w.Networks.Release(ctx, uid))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("domainctrl: release what guest %s has on the node: %w", uid, err)
	}
	return nil
}

// retain takes plugged volumes away that the object does not name any more and that the
// domain which runs, if one does, has given up.
func (w *Workspace) retain(ctx context.Context, vmi *v1.VirtualMachineInstance, live *libvirtxml.Domain) error {
	if w.Volumes == nil {
		return nil
	}
	names := domain.VolumesOf(live)
	for i := range vmi.Spec.Volumes {
		names = append(names, vmi.Spec.Volumes[i].Name)
	}
	if err := w.Volumes.Retain(ctx, vmi.UID, names); err != nil {
		return fmt.Errorf("domainctrl: take unplugged volumes away from %s: %w", objectName(vmi), err)
	}
	return nil
}

// allow lets the guest open the devices of the domains.
func (w *Workspace) allow(ctx context.Context, vmi *v1.VirtualMachineInstance, domains ...*libvirtxml.Domain) error {
	if w.Devices == nil {
		return nil
	}
	if err := w.Devices.Allow(ctx, vmi, domains...); err != nil {
		return &domain.Error{Object: objectName(vmi), Reason: "it cannot be allowed its devices on this node", Err: err}
	}
	return nil
}

// hotplugged is where a volume lies that a Pod of its own carries.
func (w *Workspace) hotplugged(ctx context.Context, v volume) (domain.DiskSource, error) {
	src, err := w.Volumes.Hotplugged(ctx, v.vmi, v.Volume)
	if err != nil {
		return domain.DiskSource{}, v.fault("name", fmt.Sprintf("volume %q cannot be brought to the guest", v.Name), "look at the Pod that carries it", err)
	}
	return src, v.examine(ctx, &src)
}
