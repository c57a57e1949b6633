// SPDX-License-Identifier: Apache-2.0

package restart_test

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/vm/restart"
)

type spec = v1.VirtualMachineInstanceSpec

func base() *spec {
	s := &spec{NodeSelector: map[string]string{"a": "b"}}
	s.Domain.CPU = &v1.CPU{Sockets: 1, Cores: 2}
	s.Domain.Memory = &v1.Memory{Guest: new(resource.MustParse("1Gi"))}
	s.Domain.Firmware = &v1.Firmware{UUID: "u"}
	add(s, claim("root", "a", false), v1.Disk{})
	add(s, claim("data", "b", true), v1.Disk{})
	add(s, v1.Volume{Name: "image", VolumeSource: v1.VolumeSource{ContainerDisk: &v1.ContainerDiskSource{Image: "x"}}}, v1.Disk{DiskDevice: v1.DiskDevice{CDRom: &v1.CDRomTarget{}}})
	add(s, claim("tray", "d", true), v1.Disk{DiskDevice: v1.DiskDevice{CDRom: &v1.CDRomTarget{}}})
	return s
}

func claim(name, claim string, hot bool) v1.Volume {
	v := v1.Volume{Name: name, VolumeSource: v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{Hotpluggable: hot}}}
	v.PersistentVolumeClaim.ClaimName = claim
	return v
}

func add(s *spec, v v1.Volume, d v1.Disk) {
	d.Name = v.Name
	s.Volumes, s.Domain.Devices.Disks = append(s.Volumes, v), append(s.Domain.Devices.Disks, d)
}

// drop removes volume and disk; keepDisk leaves the disk.
func drop(s *spec, i int, keepDisk bool) {
	s.Volumes = append(s.Volumes[:i:i], s.Volumes[i+1:]...)
	if !keepDisk {
		s.Domain.Devices.Disks = append(s.Domain.Devices.Disks[:i:i], s.Domain.Devices.Disks[i+1:]...)
	}
}

func TestRequired(t *testing.T) {
	for name, row := range map[string]struct {
		change  func(*spec)
		rollout restart.Rollout
		want    bool
	}{
		"77 nothing changed":          {change: func(*spec) {}},
		"77 non-live field":           {change: func(s *spec) { s.Domain.CPU.Cores = 4 }, want: true},
		"77 sockets":                  {change: func(s *spec) { s.Domain.CPU.Sockets = 4 }},
		"77 sockets, Stage":           {change: func(s *spec) { s.Domain.CPU.Sockets = 4 }, rollout: restart.Rollout{Stage: true}, want: true},
		"77 a CPU that was not there": {change: func(s *spec) { s.Domain.CPU = nil }, want: true},
		"77 memory":                   {change: func(s *spec) { s.Domain.Memory.Guest = new(resource.MustParse("2Gi")) }},
		"77 memory, Stage":            {change: func(s *spec) { s.Domain.Memory.Guest = new(resource.MustParse("2Gi")) }, rollout: restart.Rollout{Stage: true}, want: true},
		"76 tolerations, affinity, selector": {change: func(s *spec) {
			s.Tolerations, s.Affinity, s.NodeSelector = []corev1.Toleration{{}}, &corev1.Affinity{}, nil
		}},
		"76 tolerations, Stage":          {change: func(s *spec) { s.Tolerations = []corev1.Toleration{{}} }, rollout: restart.Rollout{Stage: true}, want: true},
		"79 UUID equal to the VMI's":     {change: func(s *spec) { s.Domain.Firmware.UUID = "v" }, rollout: restart.Rollout{SameUUID: true}},
		"79 UUID of another":             {change: func(s *spec) { s.Domain.Firmware.UUID = "v" }, want: true},
		"80 container disk replaced":     {change: func(s *spec) { s.Volumes[2].ContainerDisk = &v1.ContainerDiskSource{Image: "y"} }, want: true},
		"80 claim replaced":              {change: func(s *spec) { s.Volumes[0] = claim("root", "z", false) }, want: true},
		"80 claim replaced by migration": {change: func(s *spec) { s.Volumes[0] = claim("root", "z", false) }, rollout: restart.Rollout{MigrateVolumes: true}},
		"80 image replaced by migration": {change: func(s *spec) { s.Volumes[2].ContainerDisk = &v1.ContainerDiskSource{Image: "y"} }, rollout: restart.Rollout{MigrateVolumes: true}, want: true},
		"80 volume added":                {change: func(s *spec) { add(s, claim("new", "c", false), v1.Disk{}) }, want: true},
		"80 hotplugged volume added":     {change: func(s *spec) { add(s, claim("new", "c", true), v1.Disk{}) }},
		"80 hotplugged volume, Stage":    {change: func(s *spec) { add(s, claim("new", "c", true), v1.Disk{}) }, rollout: restart.Rollout{Stage: true}},
		"80 hotplugged volume replaced":  {change: func(s *spec) { s.Volumes[1] = claim("data", "z", true) }},
		"80 volume removed":              {change: func(s *spec) { drop(s, 0, false) }, want: true},
		"80 hotplugged volume removed":   {change: func(s *spec) { drop(s, 1, false) }},
		"80 disk changed":                {change: func(s *spec) { s.Domain.Devices.Disks[0].Serial = "s" }, want: true},
		"80 disk of a hotplugged volume": {change: func(s *spec) { s.Domain.Devices.Disks[1].Serial = "s" }},
		"80 CD-ROM ejected":              {change: func(s *spec) { drop(s, 3, true) }},
		"80 CD-ROM replaced":             {change: func(s *spec) { s.Volumes[3] = claim("tray", "z", true) }},
		"80 CD-ROM tray removed":         {change: func(s *spec) { drop(s, 3, false) }, want: true},
		"8.5 (differs: interface added)": {change: func(s *spec) { s.Domain.Devices.Interfaces = []v1.Interface{{Name: "n"}} }, want: true},
	} {
		t.Run(name, func(t *testing.T) {
			current := base()
			row.change(current)
			if got := restart.Required(base(), current, row.rollout); got != row.want {
				t.Errorf("%t, want %t", got, row.want)
			}
		})
	}
}

func ExampleRequired() {
	current := base()
	current.Domain.CPU.Sockets = 4
	fmt.Println(restart.Required(base(), current, restart.Rollout{}))
	current.Domain.CPU.Cores = 8
	fmt.Println(restart.Required(base(), current, restart.Rollout{}), restart.Message)
	// Output:
	// false
	// true a non-live-updatable field was changed in the template spec
}
