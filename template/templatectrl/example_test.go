// SPDX-License-Identifier: Apache-2.0

package templatectrl_test

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	v1 "kubevirt.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/virtloom/virtloom/template"
	"github.com/virtloom/virtloom/template/templatectrl"
)

// launcher gathers the facts and renders the VMI's Pod. In a controller, cached is mgr.GetClient() and live is
// mgr.GetAPIReader().
func launcher(ctx context.Context, cached, live client.Reader, vmi *v1.VirtualMachineInstance) (*corev1.Pod, error) {
	g := &templatectrl.Gatherer{Client: cached, Live: live}
	kv, err := g.KubeVirt(ctx)
	if err != nil {
		return nil, err
	}
	in := template.Input{VMI: vmi, Config: template.ConfigFrom(kv, "quay.io/kubevirt/virt-launcher:v1.9.0")}
	if in.Facts, err = g.Facts(ctx, vmi, in.Config, nil); err != nil {
		return nil, err
	}
	return template.Default().Launcher(in)
}

// The claim determines whether a disk is a file system or a block device, and the quota requires limits.
func Example() {
	scheme := runtime.NewScheme()
	if err := errors.Join(corev1.AddToScheme(scheme), v1.AddToScheme(scheme)); err != nil {
		fmt.Println(err)
		return
	}
	block := corev1.PersistentVolumeBlock
	disk := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "disk"},
		Spec:       corev1.PersistentVolumeClaimSpec{VolumeMode: &block},
	}
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "ns"}}
	quota := &corev1.ResourceQuota{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "quota"},
		Spec:       corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{corev1.ResourceLimitsMemory: resource.MustParse("8Gi")}},
	}
	cluster := fake.NewClientBuilder().WithScheme(scheme).WithObjects(namespace, disk, quota).Build()
	memory := resource.MustParse("1Gi")
	vmi := &v1.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "guest", UID: "uid-1"}}
	vmi.Spec.Domain.Memory = &v1.Memory{Guest: &memory}
	vmi.Spec.Domain.Devices.Disks = []v1.Disk{{Name: "root"}}
	vmi.Spec.Volumes = []v1.Volume{{Name: "root", VolumeSource: v1.VolumeSource{
		PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{
			PersistentVolumeClaimVolumeSource: corev1.PersistentVolumeClaimVolumeSource{ClaimName: "disk"},
		},
	}}}

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
