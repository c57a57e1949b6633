// SPDX-License-Identifier: Apache-2.0

package hostdevice

import (
	"fmt"
	"slices"
	"strings"

	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/convert"
)

// maxAllocated bounds the devices of one variable: a domain has fewer places for devices.
const maxAllocated = 256

// Launchers reports which host devices the kubelet has given to launcher Pods.
type Launchers struct {
	// Host is the node, for the NUMA nodes of devices.
	Host Host
	// Environment returns the environment of the launcher's container. Processes of the container
	// may have changed it: what is in it is worth no more than their own access to devices.
	Environment func(vmi *v1.VirtualMachineInstance) (map[string]string, error)
}

// Devices returns the devices of a VMI's launcher, by the resources that its spec names, in the
// order of allocation. It does not call Environment for a VMI that names none.
func (l Launchers) Devices(vmi *v1.VirtualMachineInstance) (map[string][]convert.HostDevice, error) {
	resources := named(vmi)
	if len(resources) == 0 {
		return nil, nil
	}
	env, err := l.Environment(vmi)
	if err != nil {
		return nil, fmt.Errorf("hostdevice: devices of VMI %s/%s: %w", vmi.Namespace, vmi.Name, err)
	}
	out, of := map[string][]convert.HostDevice{}, map[string]string{}
	for _, resource := range resources {
		for _, k := range kinds {
			name := variable(k.prefix, resource)
			value, there := env[name]
			if !there {
				continue
			}
			if other := of[name]; other != "" {
				return nil, fmt.Errorf("hostdevice: devices of VMI %s/%s: resources %s and %s have one variable, %s; rename one of them: %w",
					vmi.Namespace, vmi.Name, other, resource, name, domain.ErrInvalid)
			}
			of[name] = resource
			devices, err := l.parse(k, value)
			if err != nil {
				return nil, fmt.Errorf("hostdevice: devices of VMI %s/%s: variable %s of its launcher: %w", vmi.Namespace, vmi.Name, name, err)
			}
			out[resource] = append(out[resource], devices...)
		}
	}
	return out, nil
}

// named returns the resources that a VMI names. Those of resource claims have no variables.
func named(vmi *v1.VirtualMachineInstance) (out []string) {
	add := func(resource string, claim *v1.ClaimRequest) {
		if claim == nil && resource != "" && !slices.Contains(out, resource) {
			out = append(out, resource)
		}
	}
	for _, d := range vmi.Spec.Domain.Devices.HostDevices {
		add(d.DeviceName, d.ClaimRequest)
	}
	for _, d := range vmi.Spec.Domain.Devices.GPUs {
		add(d.DeviceName, d.ClaimRequest)
	}
	return out
}

// kind is a kind of host devices.
type kind struct {
	prefix string
	device func(h Host, address string) convert.HostDevice
}

// kinds are all kinds, in the order in which KubeVirt's launcher looks for them.
var kinds = []kind{
	{v1.PCIResourcePrefix, func(h Host, address string) convert.HostDevice {
		return convert.HostDevice{PCI: address, Cell: unsigned(pciForm.MatchString(address), func() *int64 { return h.bus("pci").cell(address) })}
	}},
	{v1.MDevResourcePrefix, func(h Host, uuid string) convert.HostDevice {
		return convert.HostDevice{MDev: uuid, Cell: unsigned(uuidForm.MatchString(uuid), func() *int64 { return h.mediatedCell(uuid) })}
	}},
	{v1.USBResourcePrefix, func(_ Host, address string) convert.HostDevice { return convert.HostDevice{USB: address} }},
}

// unsigned returns the NUMA node of a device whose address is one, and can be a part of a path.
func unsigned(valid bool, cell func() *int64) *uint {
	if !valid {
		return nil
	}
	c := cell()
	if c == nil {
		return nil
	}
	n := uint(*c) //nolint:gosec // it is not negative
	return &n
}

// parse returns the devices of a variable. Whether they are addresses is decided by package convert.
func (l Launchers) parse(k kind, value string) ([]convert.HostDevice, error) {
	value = strings.TrimSuffix(value, ",")
	if value == "" {
		return nil, nil
	}
	addresses := strings.Split(value, ",")
	if len(addresses) > maxAllocated {
		return nil, fmt.Errorf("it has too many devices: %d, at most %d: %w", len(addresses), maxAllocated, domain.ErrInvalid)
	}
	out := make([]convert.HostDevice, 0, len(addresses))
	for _, a := range addresses {
		out = append(out, k.device(l.Host, strings.ToLower(a)))
	}
	return out, nil
}
