// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	v1 "kubevirt.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/convert"
	"github.com/virtloom/virtloom/domain/domainctrl"
	"github.com/virtloom/virtloom/domain/workspace"
	"github.com/virtloom/virtloom/refdaemon/configfile"
)

// TestLauncher_FilesInPod has an agent and, in a container, the launcher of a guest, whose hypervisor would be
// unprivileged. It runs in a mount namespace of its own.
func TestLauncher_FilesInPod(t *testing.T) {
	pods, inside := inMountNamespace(t)
	if !inside {
		return
	}
	for _, dir := range []string{emptyDir(pods, "sockets"), emptyDir(pods, "private"), emptyDir(pods, "ephemeral-disks"), filepath.Join(pods, "claim"), filepath.Join(pods, "image/disk")} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	image := filepath.Join(pods, "image/disk/a.img")
	if err := errors.Join(os.WriteFile(image, make([]byte, 1<<20), 0o600), os.Chown(image, qemuUser, qemuUser)); err != nil {
		t.Fatal(err)
	}
	launcherIn(t, pods, "")
	o := &node{config: &configfile.NodeConfiguration{NodeName: "node-a", StateDir: t.TempDir(), Launchers: pods}}
	vmi := guestWithFiles()
	c := connectorOf(t, o, vmi)
	claim := boundClaim("c")
	claim.Status.Capacity = corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Mi")}
	w := &workspace.Workspace{Root: o.config.StateDir}
	if err := o.inPods(w, c, domainctrl.VolumeClaims{Reader: fake.NewClientBuilder().WithObjects(claim).Build()}); err != nil {
		t.Fatal(err)
	}
	if err := w.OwnDevices(t.Context(), vmi); err != nil {
		t.Error(err)
	}
	var files convert.Facts
	for range 2 {
		f, err := w.Prepare(t.Context(), vmi, domain.Host{Arch: "x86_64", KVM: true})
		if err != nil {
			t.Fatal(err)
		}
		files = f
	}
	d, err := convert.Convert(vmi, files)
	if err != nil {
		t.Fatal(err)
	}
	if log := d.Devices.Serials[0].Log.File; log != "/var/run/kubevirt-private/"+guestUID+"/virt-serial0-log" {
		t.Errorf("the console's log is %s, which the Pod's container of that name does not read", log)
	}
	pid, err := c.PID(vmi)
	if err != nil {
		t.Fatal(err)
	}
	asQEMU(t, pid, "touch", files.Dir+"/virt-serial0-log")
	if len(d.Devices.Disks) != 4 {
		t.Errorf("%d disks", len(d.Devices.Disks))
	}
	for _, disk := range d.Devices.Disks {
		path := disk.Source.File.File
		out := asQEMU(t, pid, "qemu-img", "info", "--backing-chain", "-f", disk.Driver.Type, path)
		if !strings.Contains(out, path) {
			t.Errorf("%s: %s", path, out)
		}
		asQEMU(t, pid, "dd", "conv=notrunc", "bs=1", "count=0", "of="+path, "if=/dev/null")
		if mode := asQEMU(t, pid, "stat", "-c", "%u %g %a", path); strings.TrimSpace(mode) != "107 107 600" {
			t.Errorf("%s is %s", path, mode)
		}
	}
}

// asQEMU runs a program in the launcher's container, as the hypervisor's user.
func asQEMU(t *testing.T, pid int, args ...string) string {
	t.Helper()
	in := append([]string{"--target", strconv.Itoa(pid), "--mount", "--", "setpriv", "--reuid=" + strconv.Itoa(qemuUser), "--regid=" + strconv.Itoa(qemuUser), "--clear-groups"}, args...)
	out, err := exec.CommandContext(t.Context(), "nsenter", in...).CombinedOutput()
	if err != nil {
		t.Errorf("%q: %v: %s", args, err, out)
	}
	return string(out)
}

// guestWithFiles has a disk of each kind that lies in its Pod.
func guestWithFiles() *v1.VirtualMachineInstance {
	vmi := pluggedGuest()
	vmi.Status.ActivePods = map[types.UID]string{"pod-1": "node-a"}
	size := resource.MustParse("64Mi")
	vmi.Spec.Domain.Memory = &v1.Memory{Guest: &size}
	claim := v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{}}
	claim.PersistentVolumeClaim.ClaimName = "c"
	for _, v := range []v1.Volume{
		{Name: "data", VolumeSource: claim},
		{Name: "root", VolumeSource: v1.VolumeSource{ContainerDisk: &v1.ContainerDiskSource{Image: "i"}}},
		{Name: "empty", VolumeSource: v1.VolumeSource{EmptyDisk: &v1.EmptyDiskSource{Capacity: resource.MustParse("1Mi")}}},
		{Name: "seed", VolumeSource: v1.VolumeSource{CloudInitNoCloud: &v1.CloudInitNoCloudSource{UserData: "#cloud-config"}}},
	} {
		vmi.Spec.Volumes = append(vmi.Spec.Volumes, v)
		vmi.Spec.Domain.Devices.Disks = append(vmi.Spec.Domain.Devices.Disks, v1.Disk{Name: v.Name, DiskDevice: v1.DiskDevice{Disk: &v1.DiskTarget{Bus: v1.DiskBusVirtio}}})
	}
	return vmi
}
