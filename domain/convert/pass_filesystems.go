// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"fmt"
	"path/filepath"
	"slices"

	v1 "kubevirt.io/api/core/v1"
	"libvirt.org/go/libvirtxml"

	"github.com/virtloom/virtloom/domain"
)

const (
	// filesystemQueue is the queue size of a shared directory, KubeVirt's value.
	filesystemQueue = 1024
	// maxTag is the maximum length of the mount tag of a shared directory, given by the device.
	maxTag = 36
)

// filesystems adds the directories that the node shares with the guest by virtiofsd.
func filesystems(c *Conversion) error {
	seen := map[string]bool{}
	for i, in := range c.VMI.Spec.Domain.Devices.Filesystems {
		field := fmt.Sprintf("%sfilesystems[%d]", specDevices, i)
		if err := c.checkName(field+".name", in.Name); err != nil {
			return err
		}
		known := slices.ContainsFunc(c.VMI.Spec.Volumes, func(v v1.Volume) bool { return v.Name == in.Name })
		switch {
		case in.Virtiofs == nil:
			return c.Invalid(field, "Required value: kind of file system", "set virtiofs")
		case len(in.Name) > maxTag:
			return c.Invalid(field+".name", fmt.Sprintf("Invalid value: must have at most %d characters", maxTag), "choose a shorter name")
		case seen[in.Name]:
			return c.Invalid(field+".name", fmt.Sprintf("Duplicate value: %q", in.Name), "use a unique name for each file system")
		case !known:
			return c.Invalid(field+".name", fmt.Sprintf("no matching volume %q", in.Name), "add a volume with that name to spec.volumes")
		}
		seen[in.Name] = true
		out, err := c.filesystem(in.Name)
		if err != nil {
			return err
		}
		c.Domain.Devices.Filesystems = append(c.Domain.Devices.Filesystems, *out)
	}
	return nil
}

func (c *Conversion) filesystem(name string) (*libvirtxml.DomainFilesystem, error) {
	socket := c.Facts.Filesystems[name]
	if socket == "" {
		return nil, &Error{
			Object: c.object(), Field: fmt.Sprintf("spec.volumes[%s]", name),
			Reason: "the node has no virtiofsd for this volume", Remedy: "use a disk, or wait until virtiofsd runs", Err: domain.ErrNotFound,
		}
	}
	if !filepath.IsAbs(socket) {
		return nil, &Error{
			Object: c.object(), Field: fmt.Sprintf("spec.volumes[%s]", name),
			Reason: fmt.Sprintf("the node's path of the virtiofsd socket is not absolute: %q", socket), Remedy: "correct the virtiofsd configuration of the node", Err: domain.ErrInvalid,
		}
	}
	return &libvirtxml.DomainFilesystem{
		AccessMode: "passthrough",
		Driver:     &libvirtxml.DomainFilesystemDriver{Type: "virtiofs", Queue: filesystemQueue},
		Source:     &libvirtxml.DomainFilesystemSource{Mount: &libvirtxml.DomainFilesystemSourceMount{Socket: socket}},
		Target:     &libvirtxml.DomainFilesystemTarget{Dir: name},
	}, checkSocket(socket)
}
