// SPDX-License-Identifier: Apache-2.0

package domainctrl

import (
	"context"
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/types"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/domain"
)

// Volumes gives guests the disks that Pods hold for them, where the kubelet runs a Pod
// for each guest: package domain/mounts. Its methods may be called again at any time
// and change nothing then. While something is not there yet the error wraps
// [domain.ErrNotReady].
type Volumes interface {
	// ContainerDisk returns the path of the image, which nobody writes to, of the
	// containerDisk that is the volume of that index.
	ContainerDisk(ctx context.Context, vmi *v1.VirtualMachineInstance, index int) (string, error)
	// Hotplugged returns where the volume is that was plugged in after the guest's Pod
	// was made: Path and Block of the result are set. It is called once a Pod carries
	// the volume to the node.
	Hotplugged(ctx context.Context, vmi *v1.VirtualMachineInstance, volume *v1.Volume) (domain.DiskSource, error)
	// Release takes all of it away again; a guest that has nothing is a success.
	Release(ctx context.Context, uid types.UID) error
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

// hotplugged is where a volume lies that a Pod of its own carries.
func (w *Workspace) hotplugged(ctx context.Context, v volume) (domain.DiskSource, error) {
	src, err := w.Volumes.Hotplugged(ctx, v.vmi, v.Volume)
	if err != nil {
		return domain.DiskSource{}, v.fault("name", fmt.Sprintf("volume %q cannot be brought to the guest", v.Name), "look at the Pod that carries it", err)
	}
	return src, v.examine(ctx, &src)
}
