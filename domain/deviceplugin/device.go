// SPDX-License-Identifier: Apache-2.0

package deviceplugin

import (
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
)

const (
	// Namespace is the part of a resource's name that says whose it is, as in
	// devices.kubevirt.io/kvm. Launcher Pods ask for resources under it.
	Namespace = "devices.kubevirt.io"
	// DefaultSlots is how many Pods of a node may have a device if nothing else is
	// said (KubeVirt: virt-handler, max-devices).
	DefaultSlots = 1000
	// MaxSlots bounds the slots: the kubelet gets all of them in one message.
	MaxSlots = 100_000
	// DefaultPermissions let a container read and write the device, and not make
	// device nodes.
	DefaultPermissions = "rw"
)

// Device is what a plugin offers: one or more device nodes under one name.
type Device struct {
	// Name is what the resource is called below devices.kubevirt.io: kvm.
	Name string
	// Nodes are the device nodes a container gets, under the same paths as on the
	// node. The device is healthy while all of them are there.
	Nodes []string
	// Slots is how many containers may have the device; zero means DefaultSlots.
	Slots int
	// Permissions are those of the container's device cgroup, some of r, w and m;
	// empty means DefaultPermissions.
	Permissions string
	// Open lets the node be opened once before it is handed out: the kernel loads
	// what is behind it when that happens first, which a container could not make it
	// do.
	Open bool
}

// KVM is hardware virtualization.
func KVM(slots int) Device {
	return Device{Name: "kvm", Nodes: []string{"/dev/kvm"}, Slots: slots}
}

// TUN makes tap devices for guests' interfaces.
func TUN(slots int) Device {
	return Device{Name: "tun", Nodes: []string{"/dev/net/tun"}, Slots: slots, Open: true}
}

// VhostNet moves packets of virtio interfaces inside the kernel.
func VhostNet(slots int) Device {
	return Device{Name: "vhost-net", Nodes: []string{"/dev/vhost-net"}, Slots: slots, Open: true}
}

// Permanent are the devices every node offers, whether it has them or not: one
// that is missing is reported as unhealthy. Zero slots mean DefaultSlots.
func Permanent(slots int) []Device {
	return []Device{KVM(slots), TUN(slots), VhostNet(slots)}
}

// Resource is the full name a Pod asks for: devices.kubevirt.io/kvm.
func (d Device) Resource() string { return Namespace + "/" + d.Name }

// withDefaults fills in what was left open.
func (d Device) withDefaults() Device {
	if d.Slots == 0 {
		d.Slots = DefaultSlots
	}
	if d.Permissions == "" {
		d.Permissions = DefaultPermissions
	}
	return d
}

// check tells what is wrong with the device.
func (d Device) check() error {
	var errs []error
	wrong := func(field, reason string) {
		errs = append(errs, fmt.Errorf("deviceplugin: device %q: %s: %s", d.Name, field, reason))
	}
	if problems := validation.IsDNS1123Label(d.Name); len(problems) > 0 {
		wrong("Name", problems[0])
	}
	if d.Slots < 1 || d.Slots > MaxSlots {
		wrong("Slots", fmt.Sprintf("%d is not between 1 and %d", d.Slots, MaxSlots))
	}
	if len(d.Nodes) == 0 {
		wrong("Nodes", "none is given; name the device node, such as /dev/kvm")
	}
	for _, n := range d.Nodes {
		if !filepath.IsAbs(n) || filepath.Clean(n) != n {
			wrong("Nodes", fmt.Sprintf("%q is not an absolute, clean path", n))
		}
	}
	if d.Permissions == "" || strings.Trim(d.Permissions, "rwm") != "" {
		wrong("Permissions", fmt.Sprintf("%q is not made of r, w and m", d.Permissions))
	}
	return errors.Join(errs...)
}

// slot is the identity of the i-th slot.
func (d Device) slot(i int) string { return d.Name + strconv.Itoa(i) }

// has tells whether that is the identity of one of the device's slots.
func (d Device) has(id string) bool {
	number, named := strings.CutPrefix(id, d.Name)
	i, err := strconv.Atoi(number)
	return named && err == nil && i >= 0 && i < d.Slots && d.slot(i) == id
}
