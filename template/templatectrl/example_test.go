// SPDX-License-Identifier: Apache-2.0

package templatectrl_test

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	v1 "kubevirt.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/virtloom/virtloom/template"
	"github.com/virtloom/virtloom/template/templatectrl"
)

// launcher reads what the cluster says and renders the guest's Pod. In a controller cached is mgr.GetClient() and live is
// mgr.GetAPIReader().
func launcher(ctx context.Context, cached, live client.Reader, vmi *v1.VirtualMachineInstance) (*corev1.Pod, error) {
	g := &templatectrl.Gatherer{Client: cached, Live: live}
	kv, err := g.KubeVirt(ctx)
	if err != nil {
		return nil, err
	}
	in := template.Input{VMI: vmi, Config: template.ConfigFrom(kv, "quay.io/kubevirt/virt-launcher:v1.9.0")}
	if in.Facts, err = g.Facts(ctx, vmi, in.Config); err != nil {
		return nil, err
	}
	return template.Default().Launcher(in)
}

// Whether a disk is a file system or a block device is up to its claim, and that limits are needed up to a quota.
func Example() {
	scheme, err := newScheme()
	if err != nil {
		fmt.Println(err)
		return
	}
	block := corev1.PersistentVolumeBlock
	disk := pvc("ns", "disk", nil)
	disk.Spec.VolumeMode = &block
	quota := &corev1.ResourceQuota{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "quota"},
		Spec:       corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{corev1.ResourceLimitsMemory: resource.MustParse("8Gi")}},
	}
	cluster := fake.NewClientBuilder().WithScheme(scheme).WithObjects(namespace("ns", nil), disk, quota).Build()
	memory := resource.MustParse("1Gi")
	vmi := guest(volume("root", claimed("disk")), func(g *v1.VirtualMachineInstance) {
		g.Spec.Domain.Memory = &v1.Memory{Guest: &memory}
		g.Spec.Domain.Devices.Disks = []v1.Disk{{Name: "root"}}
	})

	pod, err := launcher(context.Background(), cluster, cluster, vmi)
	if err != nil {
		fmt.Println(err)
		return
	}
	compute := pod.Spec.Containers[0]
	fmt.Println(compute.VolumeDevices[0].DevicePath)
	fmt.Println("memory is limited:", !compute.Resources.Limits.Memory().IsZero())
	// Output:
	// /dev/root
	// memory is limited: true
}
