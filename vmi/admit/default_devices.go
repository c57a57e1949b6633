// SPDX-License-Identifier: Apache-2.0

package admit

import (
	"cmp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/internal/vmidefaults"
)

// defaultPullPolicies treats the colon of a registry's port as that of a tag, as KubeVirt does.
func defaultPullPolicies(d *defaulting) {
	for i := range d.spec.Volumes {
		c := d.spec.Volumes[i].ContainerDisk
		if c == nil || c.ImagePullPolicy != "" {
			continue
		}
		c.ImagePullPolicy = corev1.PullIfNotPresent
		if strings.HasSuffix(c.Image, ":latest") || !strings.ContainsAny(c.Image, ":@") {
			c.ImagePullPolicy = corev1.PullAlways
		}
	}
}

// defaultNetwork leaves a VMI without a network if the cluster's default binding cannot be used; rule pod-network rejects
// that VMI.
func defaultNetwork(d *defaulting) {
	binding, usable := d.config.cluster().PodBinding()
	if !usable || !vmidefaults.WantsPodNetwork(d.spec) {
		return
	}
	iface := v1.DefaultBridgeNetworkInterface()
	if binding == v1.MasqueradeInterface {
		iface = v1.DefaultMasqueradeNetworkInterface()
	}
	d.spec.Domain.Devices.Interfaces = []v1.Interface{*iface}
	d.spec.Networks = []v1.Network{*v1.DefaultPodNetwork()}
}

// defaultBindings sets the bridge binding on interfaces without a binding.
func defaultBindings(d *defaulting) {
	for i := range d.spec.Domain.Devices.Interfaces {
		if in := &d.spec.Domain.Devices.Interfaces[i]; vmidefaults.IsBridge(in) {
			in.Bridge = &v1.InterfaceBridge{}
		}
	}
}

// defaultVolumeDisks adds a disk for each volume that no disk or file system uses.
func defaultVolumeDisks(d *defaulting) {
	devices := &d.spec.Domain.Devices
	for i := range d.spec.Volumes {
		v := &d.spec.Volumes[i]
		used := slices.ContainsFunc(devices.Disks, func(disk v1.Disk) bool { return disk.Name == v.Name }) ||
			slices.ContainsFunc(devices.Filesystems, func(fs v1.Filesystem) bool { return fs.Name == v.Name })
		if !used && v.MemoryDump == nil && v.ContainerPath == nil {
			devices.Disks = append(devices.Disks, v1.Disk{Name: v.Name})
		}
	}
}

// defaultDiskBuses leaves one case to the converter of the domain: a CD-ROM has no bus on an architecture whose disks are
// virtio, for which no Pod is rendered.
func defaultDiskBuses(d *defaulting) {
	metrics := vmidefaults.MetricsVolumes(d.spec)
	for i := range d.spec.Domain.Devices.Disks {
		disk := &d.spec.Domain.Devices.Disks[i]
		v1.SetDefaults_DiskDevice(&disk.DiskDevice) // a disk without a kind is a plain disk
		bus := vmidefaults.BusOf(disk, d.arch, metrics[disk.Name])
		switch {
		case disk.Disk != nil:
			disk.Disk.Bus = bus
		case disk.LUN != nil:
			disk.LUN.Bus = bus
		case disk.CDRom != nil && bus != v1.DiskBusVirtio:
			disk.CDRom.Bus = bus
		}
	}
}

// defaultWatchdog sets the watchdog device of the architecture, with action reset.
func defaultWatchdog(d *defaulting) {
	w := d.spec.Domain.Devices.Watchdog
	if w == nil {
		return
	}
	if w.I6300ESB == nil && w.Diag288 == nil {
		switch d.arch {
		case vmidefaults.AMD64:
			w.I6300ESB = &v1.I6300ESBWatchdog{}
		case vmidefaults.S390X:
			w.Diag288 = &v1.Diag288Watchdog{}
		}
	}
	if w.I6300ESB != nil {
		w.I6300ESB.Action = cmp.Or(w.I6300ESB.Action, v1.WatchdogActionReset)
	}
	if w.Diag288 != nil {
		w.Diag288.Action = cmp.Or(w.Diag288.Action, v1.WatchdogActionReset)
	}
}
