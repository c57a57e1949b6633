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
	// namespace is the domain prefix of resource names, as in devices.kubevirt.io/kvm, which
	// launcher Pods request.
	namespace = "devices.kubevirt.io"
	// DefaultSlots is the default number of Pods on a node that can use a device (KubeVirt:
	// virt-handler, max-devices).
	DefaultSlots = 1000
	// maxSlots is the maximum number of slots: the kubelet receives all of them in one message.
	maxSlots = 100_000
	// defaultPermissions let a container read and write the device, but not create device nodes.
	defaultPermissions = "rw"
)

// Device is a set of device nodes that a plugin offers as one resource.
type Device struct {
	// Name is the name of the resource below devices.kubevirt.io: kvm.
	Name string
	// Nodes are the device nodes that a container gets, at the same paths as on the node. The
	// device is healthy while all of them exist.
	Nodes []string
	// Slots is the number of containers that can use the device, at most 100,000. Defaults to
	// DefaultSlots.
	Slots int
	// Permissions are those of the container's device cgroup: some of r, w and m. Defaults to
	// "rw".
	Permissions string
	// Open makes the plugin open each node once before it allocates the device: the first open
	// makes the kernel load the module, which a container cannot trigger.
	Open bool
}

// KVM returns the device for hardware virtualization.
func KVM(slots int) Device {
	return Device{Name: "kvm", Nodes: []string{"/dev/kvm"}, Slots: slots}
}

// TUN returns the device that creates tap devices of interfaces.
func TUN(slots int) Device {
	return Device{Name: "tun", Nodes: []string{"/dev/net/tun"}, Slots: slots, Open: true}
}

// VhostNet returns the device that processes packets of virtio interfaces in the kernel.
func VhostNet(slots int) Device {
	return Device{Name: "vhost-net", Nodes: []string{"/dev/vhost-net"}, Slots: slots, Open: true}
}

// Permanent returns the devices that every node offers: a missing one is reported as unhealthy.
// Zero slots means DefaultSlots.
func Permanent(slots int) []Device {
	return []Device{KVM(slots), TUN(slots), VhostNet(slots)}
}

// Resource returns the full resource name: devices.kubevirt.io/kvm.
func (d Device) Resource() string { return namespace + "/" + d.Name }

// withDefaults sets the defaults of empty fields.
func (d Device) withDefaults() Device {
	if d.Slots == 0 {
		d.Slots = DefaultSlots
	}
	if d.Permissions == "" {
		d.Permissions = defaultPermissions
	}
	return d
}

// check returns all errors of the fields.
func (d Device) check() error {
	var errs []error
	wrong := func(field, reason string) {
		errs = append(errs, fmt.Errorf("deviceplugin: device %q: %s: %s", d.Name, field, reason))
	}
	if problems := validation.IsDNS1123Label(d.Name); len(problems) > 0 {
		wrong("Name", problems[0])
	}
	if d.Slots < 1 || d.Slots > maxSlots {
		wrong("Slots", fmt.Sprintf("Invalid value: %d is not between 1 and %d", d.Slots, maxSlots))
	}
	if len(d.Nodes) == 0 {
		wrong("Nodes", "Required value: set the device node, such as /dev/kvm")
	}
	for _, n := range d.Nodes {
		if !filepath.IsAbs(n) || filepath.Clean(n) != n {
			wrong("Nodes", fmt.Sprintf("Invalid value: %q is not an absolute, clean path", n))
		}
	}
	if d.Permissions == "" || strings.Trim(d.Permissions, "rwm") != "" {
		wrong("Permissions", fmt.Sprintf("Invalid value: %q is not made of r, w and m", d.Permissions))
	}
	return errors.Join(errs...)
}

// slot returns the ID of the i-th slot.
func (d Device) slot(i int) string { return d.Name + strconv.Itoa(i) }

// has reports whether id is the ID of one of the device's slots.
func (d Device) has(id string) bool {
	number, named := strings.CutPrefix(id, d.Name)
	i, err := strconv.Atoi(number)
	return named && err == nil && i >= 0 && i < d.Slots && d.slot(i) == id
}
