// SPDX-License-Identifier: Apache-2.0

package workspace_test

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing/fstest"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/cgroup"
	"github.com/virtloom/virtloom/domain/mounts"
	"github.com/virtloom/virtloom/domain/network"
	"github.com/virtloom/virtloom/domain/workspace"
)

// What a Workspace needs where the kubelet runs a launcher Pod for each VMI.
var (
	_ workspace.Volumes  = mounts.Volumes{}
	_ workspace.Devices  = cgroup.Filter{}
	_ workspace.Networks = &network.Bridges{}
)

// unpacked are images that were unpacked to directories of that name below a directory.
type unpacked string

var _ workspace.Images = unpacked("")

func (u unpacked) Extract(_ context.Context, image, path, dst string) error {
	root, err := os.OpenRoot(filepath.Join(string(u), image))
	if err != nil {
		return err
	}
	defer root.Close()
	in, err := root.Open(strings.TrimPrefix(path, "/"))
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.Create(dst)
	if err != nil {
		return err
	}
	defer out.Close()
	_, err = io.Copy(out, in)
	return err
}

func (u unpacked) List(_ context.Context, image, dir string) ([]string, error) {
	paths, err := filepath.Glob(filepath.Join(string(u), image, dir, "*"))
	for i := range paths {
		paths[i] = strings.TrimPrefix(paths[i], filepath.Join(string(u), image))
	}
	return paths, err
}

// The VMI boots a kernel of an image, and has two CPUs of its own and cloud-init data.
func ExampleWorkspace_Prepare() {
	root, err := os.MkdirTemp("", "workspace")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(root)
	images := unpacked(filepath.Join(root, "images"))
	if err := os.CopyFS(filepath.Join(string(images), "kernels"), fstest.MapFS{"boot/vmlinuz": {Data: []byte("MZ")}}); err != nil {
		fmt.Println(err)
		return
	}
	var cpuset workspace.DedicatedCPUs = func(context.Context, *v1.VirtualMachineInstance) ([]uint, error) {
		return []uint{4, 5}, nil
	}
	w := &workspace.Workspace{Root: root, Images: images, Bridge: "br0", DedicatedCPUs: cpuset}

	vmi := &v1.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web", UID: "5b6c1a2e"}}
	vmi.Spec.Domain.CPU = &v1.CPU{Cores: 2, DedicatedCPUPlacement: true}
	vmi.Spec.Domain.Firmware = &v1.Firmware{KernelBoot: &v1.KernelBoot{Container: &v1.KernelBootContainer{Image: "kernels", KernelPath: "/boot/vmlinuz"}}}
	vmi.Spec.Networks = []v1.Network{*v1.DefaultPodNetwork()}
	vmi.Spec.Volumes = []v1.Volume{{Name: "seed", VolumeSource: v1.VolumeSource{CloudInitNoCloud: &v1.CloudInitNoCloudSource{UserData: "#cloud-config"}}}}

	facts, err := w.Prepare(context.Background(), vmi, domain.Host{Name: "node-a", Arch: "x86_64", KVM: true})
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, path := range []string{facts.Kernel, facts.Disks["seed"].Path} {
		fmt.Println(strings.TrimPrefix(path, root))
	}
	fmt.Println(facts.Bridges, facts.CPUs)
	// The VMI has been deleted:
	fmt.Println(w.Clear(context.Background(), vmi.UID))
	// Output:
	// /guests/5b6c1a2e/kernel
	// /guests/5b6c1a2e/volume-seed.iso
	// map[default:br0] [4 5]
	// <nil>
}

// Every VMI has a directory of its own, named by its UID, which is never a path.
func ExampleWorkspace_Dir() {
	w := &workspace.Workspace{Root: "/var/lib/virtloom", Bridge: "br0"}
	const uid = "6b1f5a0e-8a51-4c39-9f6c-0f4f8b7a1c11"
	fmt.Println(w.Dir(uid))
	fmt.Println(w.Remove(".."))
	// Output:
	// /var/lib/virtloom/guests/6b1f5a0e-8a51-4c39-9f6c-0f4f8b7a1c11
	// workspace: metadata.uid: Invalid value: ".." cannot name a directory; store the object in the API server first
}
