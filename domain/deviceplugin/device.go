// SPDX-License-Identifier: Apache-2.0

package deviceplugin

import (
	"errors"
	"fmt"
	"hash/fnv"
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

// Device is what a plugin offers as one resource: a set of device nodes that containers share, or
// devices that each container has alone.
type Device struct {
	// Name is the name of the resource: kvm, which is below devices.kubevirt.io, or one with a
	// domain of its own, nvidia.com/GA102.
	Name string
	// Nodes are the device nodes that a container gets, at the same paths as on the node. The
	// device is healthy while all of them exist.
	Nodes []string
	// Units are the devices of a resource whose devices are not alike, instead of Nodes. See
	// [Plugin.Update].
	Units []Unit
	// Slots is the number of containers that can use Nodes, at most 100,000. Defaults to
	// DefaultSlots.
	Slots int
	// Permissions are those of the container's device cgroup: some of r, w and m. Defaults to
	// "rw".
	Permissions string
	// Open makes the plugin open each of Nodes once before it allocates the device: the first open
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
func (d Device) Resource() string {
	if strings.Contains(d.Name, "/") {
		return d.Name
	}
	return namespace + "/" + d.Name
}

// maxSocket limits the part of a socket's name that comes from the resource: the path of a socket
// has at most 107 bytes.
const maxSocket = 40

// socket returns the name of the plugin's socket. KubeVirt's resources have KubeVirt's names; those
// of others may be long, and may differ in what a file name cannot have.
func (d Device) socket() string {
	name := d.Name
	if strings.Contains(name, "/") {
		h := fnv.New32a()
		h.Write([]byte(name)) // it cannot fail
		name = strings.ReplaceAll(name, "/", "-")
		name = fmt.Sprintf("%s-%08x", name[:min(len(name), maxSocket)], h.Sum32())
	}
	return "kubevirt-" + name + ".sock"
}

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
		errs = append(errs, invalid(d.Name, field, reason))
	}
	problems := validation.IsDNS1123Label(d.Name)
	if strings.Contains(d.Name, "/") {
		problems = validation.IsQualifiedName(d.Name)
	}
	if len(problems) > 0 {
		wrong("Name", problems[0])
	}
	if d.Slots < 1 || d.Slots > maxSlots {
		wrong("Slots", fmt.Sprintf("Invalid value: %d is not between 1 and %d", d.Slots, maxSlots))
	}
	if d.Permissions == "" || strings.Trim(d.Permissions, "rwm") != "" {
		wrong("Permissions", fmt.Sprintf("Invalid value: %q is not made of r, w and m", d.Permissions))
	}
	return errors.Join(append(errs, d.checkOffer())...)
}

// checkOffer returns the error of Nodes or Units, of which there is one.
func (d Device) checkOffer() error {
	switch {
	case len(d.Nodes) == 0 && len(d.Units) == 0:
		return invalid(d.Name, "Nodes", "Required value: set the device node, such as /dev/kvm")
	case len(d.Nodes) > 0 && len(d.Units) > 0:
		return invalid(d.Name, "Units", "Forbidden: the device has Nodes; remove one of them")
	}
	if reason := checkNodes(d.Nodes); reason != "" {
		return invalid(d.Name, "Nodes", reason)
	}
	return checkUnits(d.Name, d.Units)
}

// units returns the devices that the kubelet is offered: for shared nodes, one for each slot.
func (d Device) units() []Unit {
	if len(d.Units) > 0 {
		return d.Units
	}
	out := make([]Unit, d.Slots)
	for i := range out {
		out[i] = Unit{ID: d.Name + strconv.Itoa(i), Nodes: d.Nodes}
	}
	return out
}
