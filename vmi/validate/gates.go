// SPDX-License-Identifier: Apache-2.0

package validate

import (
	"fmt"
	"iter"
	"slices"

	v1 "kubevirt.io/api/core/v1"
)

// Feature gates of KubeVirt that a field or an annotation of a VMI requires.
const (
	Sidecar               = "Sidecar"
	Ignition              = "ExperimentalIgnitionSupport"
	HostDisk              = "HostDisk"
	HostDevices           = "HostDevices"
	DownwardMetrics       = "DownwardMetrics"
	SEV                   = "WorkloadEncryptionSEV"
	TDX                   = "WorkloadEncryptionTDX"
	VSOCK                 = "VSOCK"
	VirtiofsStorage       = "EnableVirtioFsStorageVolumes"
	UtilityVolumes        = "UtilityVolumes"
	ContainerPaths        = "ContainerPathVolumes"
	GPUsWithDRA           = "GPUsWithDRA"
	HostDevicesWithDRA    = "HostDevicesWithDRA"
	NetworksWithDRA       = "NetworkDevicesWithDRA"
	PersistentReservation = "PersistentReservation"
	Root                  = "Root"
)

// betaOn are the gates that are enabled unless listed in Off.
var betaOn = []string{
	"ImageVolume", "PodSecondaryInterfaceNamingUpgrade", "ExternalNetResourceInjection", GPUsWithDRA, HostDevicesWithDRA,
}

// Gates are the feature gates of a cluster (KubeVirt: developerConfiguration.featureGates and disabledFeatureGates).
type Gates struct{ On, Off []string }

// Enabled reports whether a gate is enabled: listed in On, otherwise not listed in Off and enabled by default.
func (g Gates) Enabled(name string) bool {
	if slices.Contains(g.On, name) {
		return true
	}
	return !slices.Contains(g.Off, name) && slices.Contains(betaOn, name)
}

// gatedField is a field that requires a gate.
type gatedField struct {
	gate string
	// used returns the paths at which the VMI sets it.
	used func(*v1.VirtualMachineInstance) iter.Seq[string]
}

const (
	devices       = "spec.domain.devices."
	hookSidecars  = "hooks.kubevirt.io/hookSidecars"
	launchSecured = "spec.domain.launchSecurity."
)

// gatedFields lists all gated fields.
var gatedFields = []gatedField{
	{Sidecar, annotation(hookSidecars)},
	{Ignition, annotation(v1.IgnitionAnnotation)},
	{HostDisk, volume("hostDisk", func(v *v1.Volume) bool { return v.HostDisk != nil })},
	{DownwardMetrics, volume("downwardMetrics", func(v *v1.Volume) bool { return v.DownwardMetrics != nil })},
	{DownwardMetrics, single(devices+"downwardMetrics", func(vmi *v1.VirtualMachineInstance) bool {
		return vmi.Spec.Domain.Devices.DownwardMetrics != nil
	})},
	{ContainerPaths, volume("containerPath", func(v *v1.Volume) bool { return v.ContainerPath != nil })},
	{VirtiofsStorage, sharedClaims},
	{UtilityVolumes, func(vmi *v1.VirtualMachineInstance) iter.Seq[string] {
		return elements("spec.utilityVolumes", "", vmi.Spec.UtilityVolumes, func(*v1.UtilityVolume) bool { return true })
	}},
	{HostDevices, func(vmi *v1.VirtualMachineInstance) iter.Seq[string] {
		return elements(devices+"hostDevices", "", vmi.Spec.Domain.Devices.HostDevices, func(*v1.HostDevice) bool { return true })
	}},
	{HostDevicesWithDRA, func(vmi *v1.VirtualMachineInstance) iter.Seq[string] {
		return elements(devices+"hostDevices", ".claimName", vmi.Spec.Domain.Devices.HostDevices, func(d *v1.HostDevice) bool { return d.ClaimRequest != nil })
	}},
	{GPUsWithDRA, func(vmi *v1.VirtualMachineInstance) iter.Seq[string] {
		return elements(devices+"gpus", ".claimName", vmi.Spec.Domain.Devices.GPUs, func(d *v1.GPU) bool { return d.ClaimRequest != nil })
	}},
	{NetworksWithDRA, func(vmi *v1.VirtualMachineInstance) iter.Seq[string] {
		return elements("spec.networks", ".resourceClaim", vmi.Spec.Networks, func(n *v1.Network) bool { return n.ResourceClaim != nil })
	}},
	{PersistentReservation, func(vmi *v1.VirtualMachineInstance) iter.Seq[string] {
		return elements(devices+"disks", ".lun.reservation", vmi.Spec.Domain.Devices.Disks, func(d *v1.Disk) bool {
			return d.LUN != nil && d.LUN.Reservation
		})
	}},
	{VSOCK, single(devices+"autoattachVSOCK", func(vmi *v1.VirtualMachineInstance) bool {
		auto := vmi.Spec.Domain.Devices.AutoattachVSOCK
		return auto != nil && *auto
	})},
	{SEV, secured("sev", func(s *v1.LaunchSecurity) bool { return s.SEV != nil })},
	{SEV, secured("snp", func(s *v1.LaunchSecurity) bool { return s.SNP != nil })},
	{TDX, secured("tdx", func(s *v1.LaunchSecurity) bool { return s.TDX != nil })},
}

// Closed returns the fields of a VMI whose gates are disabled.
func Closed(vmi *v1.VirtualMachineInstance, gates Gates) (faults []Fault) {
	for i := range gatedFields {
		f := &gatedFields[i]
		if gates.Enabled(f.gate) {
			continue
		}
		for path := range f.used(vmi) {
			faults = append(faults, Fault{
				Kind: Gated, Field: path, Reason: "requires the feature gate " + f.gate,
				Remedy: "add it to spec.configuration.developerConfiguration.featureGates of the KubeVirt object, or remove the field",
			})
		}
	}
	return faults
}

// Needed returns the gates that a VMI requires, each once.
func Needed(vmi *v1.VirtualMachineInstance) (gates []string) {
	for i := range gatedFields {
		f := &gatedFields[i]
		for range f.used(vmi) {
			if !slices.Contains(gates, f.gate) {
				gates = append(gates, f.gate)
			}
			break
		}
	}
	return gates
}

// single returns a field with one fixed path.
func single(path string, there func(*v1.VirtualMachineInstance) bool) func(*v1.VirtualMachineInstance) iter.Seq[string] {
	return func(vmi *v1.VirtualMachineInstance) iter.Seq[string] {
		return func(yield func(string) bool) {
			if there(vmi) {
				yield(path)
			}
		}
	}
}

func annotation(key string) func(*v1.VirtualMachineInstance) iter.Seq[string] {
	return single("metadata.annotations["+key+"]", func(vmi *v1.VirtualMachineInstance) bool {
		_, there := vmi.Annotations[key]
		return there
	})
}

func secured(by string, there func(*v1.LaunchSecurity) bool) func(*v1.VirtualMachineInstance) iter.Seq[string] {
	return single(launchSecured+by, func(vmi *v1.VirtualMachineInstance) bool {
		return vmi.Spec.Domain.LaunchSecurity != nil && there(vmi.Spec.Domain.LaunchSecurity)
	})
}

func volume(source string, is func(*v1.Volume) bool) func(*v1.VirtualMachineInstance) iter.Seq[string] {
	return func(vmi *v1.VirtualMachineInstance) iter.Seq[string] {
		return elements("spec.volumes", "."+source, vmi.Spec.Volumes, is)
	}
}

// elements returns the paths of the elements that match.
func elements[T any](list, part string, all []T, meant func(*T) bool) iter.Seq[string] {
	return func(yield func(string) bool) {
		for i := range all {
			if meant(&all[i]) && !yield(fmt.Sprintf("%s[%d]%s", list, i, part)) {
				return
			}
		}
	}
}

// sharedClaims returns the file systems that share the data of a claim with the guest.
func sharedClaims(vmi *v1.VirtualMachineInstance) iter.Seq[string] {
	if len(vmi.Spec.Domain.Devices.Filesystems) == 0 {
		return func(func(string) bool) {}
	}
	claims := map[string]bool{}
	for i := range vmi.Spec.Volumes {
		v := &vmi.Spec.Volumes[i]
		claims[v.Name] = claims[v.Name] || v.PersistentVolumeClaim != nil || v.DataVolume != nil
	}
	return elements(devices+"filesystems", ".name", vmi.Spec.Domain.Devices.Filesystems, func(f *v1.Filesystem) bool { return claims[f.Name] })
}
