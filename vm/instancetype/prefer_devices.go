// SPDX-License-Identifier: Apache-2.0

package instancetype

import (
	"slices"

	v1 "kubevirt.io/api/core/v1"
	"kubevirt.io/api/instancetype/v1beta1"
)

// devices sets what is unset on the devices that there are.
func (a *preferring) devices() {
	p, d := a.p.Devices, &a.target.Spec.Domain.Devices
	if p == nil {
		return
	}
	if p.PreferredDisableHotplug != nil {
		d.DisableHotplug = *p.PreferredDisableHotplug
	}
	autoattach(d, p)
	fill(&d.UseVirtioTransitional, p.PreferredUseVirtioTransitional)
	fill(&d.Rng, p.PreferredRng)
	fill(&d.BlockMultiQueue, p.PreferredBlockMultiQueue)
	fill(&d.NetworkInterfaceMultiQueue, p.PreferredNetworkInterfaceMultiQueue)
	fill(&d.TPM, p.PreferredTPM)
	if d.Sound != nil {
		fillText(&d.Sound.Model, p.PreferredSoundModel)
	}
	if p.PreferredVideoType != nil && d.Video == nil && (d.AutoattachGraphicsDevice == nil || *d.AutoattachGraphicsDevice) {
		d.Video = &v1.VideoDevice{Type: *p.PreferredVideoType}
	}
	for i := range d.GPUs {
		fill(&d.GPUs[i].VirtualGPUOptions, p.PreferredVirtualGPUOptions.DeepCopy())
	}
	for i := range d.PanicDevices {
		fill(&d.PanicDevices[i].Model, p.PreferredPanicDeviceModel)
	}
	for i := range d.Inputs {
		fillText(&d.Inputs[i].Bus, p.PreferredInputBus)
		fillText(&d.Inputs[i].Type, p.PreferredInputType)
	}
	for i := range d.Disks {
		preferDisk(&d.Disks[i], p)
	}
	a.interfaces()
}

// autoattach sets which devices the VMI gets without being asked.
func autoattach(d *v1.Devices, p *v1beta1.DevicePreferences) {
	fill(&d.AutoattachGraphicsDevice, p.PreferredAutoattachGraphicsDevice)
	fill(&d.AutoattachMemBalloon, p.PreferredAutoattachMemBalloon)
	fill(&d.AutoattachPodInterface, p.PreferredAutoattachPodInterface)
	fill(&d.AutoattachSerialConsole, p.PreferredAutoattachSerialConsole)
	fill(&d.AutoattachInputDevice, p.PreferredAutoattachInputDevice)
}

// preferDisk sets what is unset on a disk. One without a target becomes a plain disk.
func preferDisk(d *v1.Disk, p *v1beta1.DevicePreferences) {
	switch {
	case d.CDRom != nil:
		fillText(&d.CDRom.Bus, p.PreferredCdromBus)
	case d.LUN != nil:
		fillText(&d.LUN.Bus, p.PreferredLunBus)
	default:
		fillText(&part(&d.Disk).Bus, p.PreferredDiskBus)
		fill(&d.BlockSize, p.PreferredDiskBlockSize.DeepCopy())
		fillText(&d.Cache, p.PreferredDiskCache)
		fillText(&d.IO, p.PreferredDiskIO)
		if d.Disk.Bus == v1.DiskBusVirtio {
			fill(&d.DedicatedIOThread, p.PreferredDiskDedicatedIoThread)
		}
	}
}

// interfaces sets model and binding; masquerade on the Pod network only.
func (a *preferring) interfaces() {
	p, d := a.p.Devices, &a.target.Spec.Domain.Devices
	for i := range d.Interfaces {
		in := &d.Interfaces[i]
		fillText(&in.Model, p.PreferredInterfaceModel)
		onPod := slices.ContainsFunc(a.target.Spec.Networks, func(n v1.Network) bool { return n.Name == in.Name && n.Pod != nil })
		if p.PreferredInterfaceMasquerade != nil && in.InterfaceBindingMethod == (v1.InterfaceBindingMethod{}) && in.Binding == nil && onPod {
			in.Masquerade = p.PreferredInterfaceMasquerade.DeepCopy()
		}
	}
}
