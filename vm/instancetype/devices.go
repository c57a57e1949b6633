// SPDX-License-Identifier: Apache-2.0

package instancetype

import (
	"errors"
	"slices"

	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/internal/vmidefaults"
)

// Cluster is the part of the cluster's configuration that decides which devices a VMI gets without being asked.
type Cluster struct {
	// NetworkInterface is the binding of the default network; empty means bridge. (KubeVirt: defaultNetworkInterface)
	NetworkInterface v1.NetworkInterfaceType
	// ForbidPodBridge refuses the bridge binding. (KubeVirt: permitBridgeInterfaceOnPodNetwork is false)
	ForbidPodBridge bool
}

// defaultInput is the name of the input device that a VMI gets by default.
const defaultInput = "default-0"

// Complete adds the devices that a VMI gets without being asked: a disk for each volume that nothing uses, an input
// device, and the default network. It comes before [ToVMI], so that the preferences of disks, inputs and interfaces reach them
// too, and itself begins with the preferences that decide whether there are such devices.
func Complete(spec *v1.VirtualMachineInstanceSpec, d Definitions, c Cluster) error {
	if d.Preference != nil && d.Preference.Devices != nil {
		autoattach(&spec.Domain.Devices, d.Preference.Devices.DeepCopy())
	}
	addDisks(spec)
	if devices := &spec.Domain.Devices; yes(devices.AutoattachInputDevice) && len(devices.Inputs) == 0 {
		devices.Inputs = []v1.Input{{Name: defaultInput}}
	}
	return addNetwork(spec, c)
}

// addDisks adds a disk for each volume that no disk or file system uses.
func addDisks(spec *v1.VirtualMachineInstanceSpec) {
	devices := &spec.Domain.Devices
	for i := range spec.Volumes {
		v := &spec.Volumes[i]
		used := slices.ContainsFunc(devices.Disks, func(d v1.Disk) bool { return d.Name == v.Name }) ||
			slices.ContainsFunc(devices.Filesystems, func(f v1.Filesystem) bool { return f.Name == v.Name })
		if !used && v.MemoryDump == nil && v.ContainerPath == nil {
			devices.Disks = append(devices.Disks, v1.Disk{Name: v.Name})
		}
	}
}

// addNetwork adds the default network to a VMI without networks.
func addNetwork(spec *v1.VirtualMachineInstanceSpec, c Cluster) error {
	if !vmidefaults.WantsPodNetwork(spec) {
		return nil
	}
	if c.NetworkInterface == v1.DeprecatedSlirpInterface {
		return errors.New("slirp interface is deprecated as of v1.3")
	}
	binding, usable := (&vmidefaults.Cluster{NetworkInterface: c.NetworkInterface, ForbidPodBridge: c.ForbidPodBridge}).PodBinding()
	in := v1.DefaultBridgeNetworkInterface()
	switch {
	case !usable && binding == v1.BridgeInterface:
		return errors.New("bridge interface is not enabled in kubevirt-config")
	case !usable:
		return nil
	case binding == v1.MasqueradeInterface:
		in = v1.DefaultMasqueradeNetworkInterface()
	}
	spec.Domain.Devices.Interfaces = []v1.Interface{*in}
	spec.Networks = []v1.Network{*v1.DefaultPodNetwork()}
	return nil
}
