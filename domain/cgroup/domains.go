// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"fmt"

	"libvirt.org/go/libvirtxml"

	"github.com/virtloom/virtloom/domain"
)

// Directories of device nodes whose numbers the kernel allocates dynamically.
const (
	vfioFolder = "/dev/vfio"
	vfioCdevs  = "/dev/vfio/devices"
	majorUSB   = 189
	vsockNode  = "/dev/vhost-vsock"
	sevNode    = "/dev/sev"
	iommuNode  = "/dev/iommu"
)

// Node is a device node.
type Node struct {
	// Kind is the kind of its device.
	Kind Kind
	// Major and Minor are its device numbers.
	Major, Minor uint32
}

// Devices looks up the device nodes that a guest can access. See [Root].
type Devices interface {
	// Node returns the device node at path. The error wraps [domain.ErrNotReady] if it does not
	// exist, and [domain.ErrInvalid] if it is not a device node.
	Node(path string) (Node, error)
	// List returns the paths of the device nodes directly in a directory, none if the directory
	// does not exist.
	List(dir string) ([]string, error)
}

// Rules returns the complete list for a guest: [Default], and every device of any of the domains.
// Pass the running and the desired domain, so that a device is allowed before it is hotplugged and
// until it is unplugged. Domains may be nil. A device that cannot be found is an error and never
// omitted.
func Rules(devices Devices, domains ...*libvirtxml.Domain) ([]Rule, error) {
	l := list{devices: devices, rules: Default()}
	for _, d := range domains {
		if d != nil {
			l.domain(d)
		}
	}
	if l.err != nil {
		return nil, fmt.Errorf("cgroup: looking up devices of the domain: %w", l.err)
	}
	return normal(l.rules), nil
}

// list is a list of rules under construction.
type list struct {
	devices Devices
	rules   []Rule
	err     error
}

// node adds the device at path.
func (l *list) node(path string) {
	if l.err != nil || path == "" {
		return
	}
	n, err := l.devices.Node(path)
	if err != nil {
		l.err = err
		return
	}
	l.rules = append(l.rules, Rule{Kind: n.Kind, Major: int64(n.Major), Minor: int64(n.Minor), Access: All})
}

// folder adds the devices of all nodes in a directory.
func (l *list) folder(dir string) {
	if l.err != nil {
		return
	}
	paths, err := l.devices.List(dir)
	if err != nil {
		l.err = err
		return
	}
	for _, p := range paths {
		l.node(p)
	}
}

func (l *list) domain(d *libvirtxml.Domain) {
	if s := d.LaunchSecurity; s != nil && (s.SEV != nil || s.SEVSNP != nil) {
		l.node(sevNode)
	}
	if d.IOMMUFD != nil {
		l.node(iommuNode)
	}
	if d.Devices == nil {
		return
	}
	for i := range d.Devices.Disks {
		l.disk(&d.Devices.Disks[i])
	}
	for i := range d.Devices.Hostdevs {
		l.host(&d.Devices.Hostdevs[i])
	}
	if d.Devices.VSock != nil {
		l.node(vsockNode)
	}
	l.small(d.Devices)
	l.chardevs(d.Devices)
}

// disk adds a disk and all images with its data.
func (l *list) disk(d *libvirtxml.DomainDisk) {
	l.source(d.Source)
	l.chain(d.BackingStore)
	if d.Mirror != nil {
		l.source(d.Mirror.Source)
		l.chain(d.Mirror.BackingStore)
	}
}

func (l *list) chain(b *libvirtxml.DomainDiskBackingStore) {
	for ; b != nil; b = b.BackingStore {
		l.source(b.Source)
	}
}

func (l *list) source(s *libvirtxml.DomainDiskSource) {
	if s == nil {
		return
	}
	switch {
	case s.Block != nil:
		l.node(s.Block.Dev)
	case s.VHostVDPA != nil:
		l.node(s.VHostVDPA.Dev)
	}
	if s.DataStore != nil {
		l.source(s.DataStore.Source)
	}
}

// host adds a host device. A domain does not determine its VFIO node, so all of them are added; a
// container has those of its own devices only.
func (l *list) host(h *libvirtxml.DomainHostdev) {
	switch {
	case h.SubsysPCI != nil:
		l.folder(vfioFolder)
		if dr := h.SubsysPCI.Driver; dr != nil && dr.IommuFD == "yes" {
			l.node(iommuNode)
			l.folder(vfioCdevs)
		}
	case h.SubsysMDev != nil, h.SubsysSCSIHost != nil:
		l.folder(vfioFolder)
	case h.SubsysUSB != nil:
		// Its number changes with every reset.
		l.rules = append(l.rules, Rule{Kind: Char, Major: majorUSB, Minor: Any, Access: All})
	case h.CapsStorage != nil && h.CapsStorage.Source != nil:
		l.node(h.CapsStorage.Source.Block)
	case h.CapsMisc != nil && h.CapsMisc.Source != nil:
		l.node(h.CapsMisc.Source.Char)
	}
}

func (l *list) small(d *libvirtxml.DomainDeviceList) {
	for _, r := range d.RNGs {
		if r.Backend != nil && r.Backend.Random != nil {
			l.node(r.Backend.Random.Device)
		}
	}
	for _, t := range d.TPMs {
		if t.Backend != nil && t.Backend.Passthrough != nil && t.Backend.Passthrough.Device != nil {
			l.node(t.Backend.Passthrough.Device.Path)
		}
	}
	for _, i := range d.Inputs {
		switch {
		case i.Source == nil:
		case i.Source.Passthrough != nil:
			l.node(i.Source.Passthrough.EVDev)
		case i.Source.EVDev != nil:
			l.node(i.Source.EVDev.Dev)
		}
	}
}

// chardevs adds host devices of serial ports and other character devices.
func (l *list) chardevs(d *libvirtxml.DomainDeviceList) {
	var all []*libvirtxml.DomainChardevSource
	for i := range d.Serials {
		all = append(all, d.Serials[i].Source)
	}
	for i := range d.Parallels {
		all = append(all, d.Parallels[i].Source)
	}
	for i := range d.Consoles {
		all = append(all, d.Consoles[i].Source)
	}
	for i := range d.Channels {
		all = append(all, d.Channels[i].Source)
	}
	for _, s := range all {
		if s != nil && s.Dev != nil {
			l.node(s.Dev.Path)
		}
	}
}

var _ Devices = Root{}

// notReady returns the error for a device node that does not exist.
func notReady(path string, err error) error {
	return fmt.Errorf("device %s: %w: %w", path, domain.ErrNotReady, err)
}
