// SPDX-License-Identifier: Apache-2.0

package assume_test

import (
	"cmp"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/domain/convert"
	"github.com/virtloom/virtloom/domain/convert/assume"
)

// chain prints a disk and the images below it, whose format is raw where it is empty.
func chain(d convert.DiskSource) string {
	out := cmp.Or(d.Format, "raw") + " " + d.Path
	for below := d.Backing; below != nil; below = below.Backing {
		out += "; " + cmp.Or(below.Format, "raw") + " " + below.Path
	}
	return out
}

func TestFacts_VolumePaths(t *testing.T) {
	vmi := func(source v1.VolumeSource) *v1.VirtualMachineInstance {
		return &v1.VirtualMachineInstance{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "n"},
			Spec:       v1.VirtualMachineInstanceSpec{Volumes: []v1.Volume{{Name: "v", VolumeSource: source}}},
		}
	}
	const private, shared, ephemeral = "/var/run/kubevirt-private/", "/var/run/kubevirt/", "/var/run/kubevirt-ephemeral-disks/"
	const cloud = ephemeral + "cloud-init-data/ns/n/"
	for name, row := range map[string]struct {
		source v1.VolumeSource
		want   string
	}{
		"claim":           {v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{}}, "raw " + private + "vmi-disks/v/disk.img"},
		"hostDisk":        {v1.VolumeSource{HostDisk: &v1.HostDisk{Path: "/srv/x.img"}}, "raw " + private + "vmi-disks/v/x.img"},
		"dataVolume":      {v1.VolumeSource{DataVolume: &v1.DataVolumeSource{Name: "d"}}, "raw " + private + "vmi-disks/v/disk.img"},
		"containerDisk":   {v1.VolumeSource{ContainerDisk: &v1.ContainerDiskSource{}}, "qcow2 " + ephemeral + "disk-data/v/disk.qcow2; raw " + shared + "container-disks/disk_0.img"},
		"ephemeral":       {v1.VolumeSource{Ephemeral: &v1.EphemeralVolumeSource{}}, "qcow2 " + ephemeral + "disk-data/v/disk.qcow2; raw " + private + "vmi-disks/v/disk.img"},
		"emptyDisk":       {v1.VolumeSource{EmptyDisk: &v1.EmptyDiskSource{}}, "qcow2 /var/run/libvirt/empty-disks/v.qcow2"},
		"noCloud":         {v1.VolumeSource{CloudInitNoCloud: &v1.CloudInitNoCloudSource{}}, "raw " + cloud + "noCloud.iso"},
		"configDrive":     {v1.VolumeSource{CloudInitConfigDrive: &v1.CloudInitConfigDriveSource{}}, "raw " + cloud + "configdrive.iso"},
		"configMap":       {v1.VolumeSource{ConfigMap: &v1.ConfigMapVolumeSource{}}, "raw " + private + "config-map-disks/v.iso"},
		"secret":          {v1.VolumeSource{Secret: &v1.SecretVolumeSource{}}, "raw " + private + "secret-disks/v.iso"},
		"downwardAPI":     {v1.VolumeSource{DownwardAPI: &v1.DownwardAPIVolumeSource{}}, "raw " + private + "downwardapi-disks/v.iso"},
		"serviceAccount":  {v1.VolumeSource{ServiceAccount: &v1.ServiceAccountVolumeSource{}}, "raw " + private + "service-account-disk/service-account.iso"},
		"sysprep":         {v1.VolumeSource{Sysprep: &v1.SysprepSource{}}, "raw " + private + "sysprep-disks/v.iso"},
		"downwardMetrics": {v1.VolumeSource{DownwardMetrics: &v1.DownwardMetricsVolumeSource{}}, "raw " + private + "downwardapi-disks/vhostmd0"},
	} {
		t.Run(name, func(t *testing.T) {
			f := assume.Facts(vmi(row.source))
			if got := chain(f.Disks["v"]); got != row.want {
				t.Errorf("got  %v\nwant %v", got, row.want)
			}
		})
	}
}
