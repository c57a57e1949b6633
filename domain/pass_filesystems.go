// SPDX-License-Identifier: Apache-2.0

package domain

import (
	"fmt"
	"path/filepath"
	"slices"

	v1 "kubevirt.io/api/core/v1"
	"libvirt.org/go/libvirtxml"
)

const (
	// filesystemQueue is the size of a shared directory's request queue, KubeVirt's.
	filesystemQueue = 1024
	// maxTag is the length of the name by which a guest mounts a shared directory;
	// the device has no room for more.
	maxTag = 36
)

// filesystems adds the directories that the node shares with the guest through
// virtiofsd.
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
			return c.Invalid(field, "names no kind of file system", "set virtiofs")
		case len(in.Name) > maxTag:
			return c.Invalid(field+".name", fmt.Sprintf("has more than %d characters", maxTag), "choose a shorter name")
		case seen[in.Name]:
			return c.Invalid(field+".name", fmt.Sprintf("%q occurs twice", in.Name), "give every file system a name of its own")
		case !known:
			return c.Invalid(field+".name", fmt.Sprintf("no volume %q", in.Name), "add a volume of that name to spec.volumes")
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
			Reason: "the node has no virtiofsd for this volume", Remedy: "use a disk, or wait until it is served", Err: ErrNotFound,
		}
	}
	if !filepath.IsAbs(socket) {
		return nil, &Error{
			Object: c.object(), Field: fmt.Sprintf("spec.volumes[%s]", name),
			Reason: fmt.Sprintf("the node names no absolute path but %q", socket), Remedy: "correct the node's virtiofsd", Err: ErrInvalid,
		}
	}
	return &libvirtxml.DomainFilesystem{
		AccessMode: "passthrough",
		Driver:     &libvirtxml.DomainFilesystemDriver{Type: "virtiofs", Queue: filesystemQueue},
		Source:     &libvirtxml.DomainFilesystemSource{Mount: &libvirtxml.DomainFilesystemSourceMount{Socket: socket}},
		Target:     &libvirtxml.DomainFilesystemTarget{Dir: name},
	}, checkSocket(socket)
}
