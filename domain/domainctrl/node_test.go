// SPDX-License-Identifier: Apache-2.0

package domainctrl_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/virtloom/virtloom/domain/domainctrl"
	"github.com/virtloom/virtloom/domain/internal/domainfixture"
	"github.com/virtloom/virtloom/domain/workspace"
)

func TestReconciler_MissingFields(t *testing.T) {
	domainfixture.Says(t, (&domainctrl.Reconciler{}).SetupWithManager(nil),
		"NodeName", "Transport", "Hypervisor", "Workspace", "Client", "APIReader", "Caches")
}

func claimOn(source corev1.PersistentVolumeSource, change ...func(*corev1.PersistentVolumeClaim)) []client.Object {
	pv := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv"}}
	pv.Spec.PersistentVolumeSource = source
	pv.Spec.Capacity = corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}
	pvc := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "data"}}
	pvc.Spec.VolumeName, pvc.Status.Phase = "pv", corev1.ClaimBound
	for _, c := range change {
		c(pvc)
	}
	return []client.Object{pv, pvc}
}

func TestVolumeClaims_Locate(t *testing.T) {
	hostPath := corev1.PersistentVolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/data"}}
	local := corev1.PersistentVolumeSource{Local: &corev1.LocalVolumeSource{Path: "/dev/disk"}}
	block := corev1.PersistentVolumeBlock
	for name, tt := range map[string]struct {
		objects []client.Object
		want    workspace.Claim
	}{
		"one node's": {claimOn(hostPath), workspace.Claim{Path: "/data", Bytes: 1 << 30}},
		"shared": {claimOn(hostPath, func(c *corev1.PersistentVolumeClaim) {
			c.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany}
		}), workspace.Claim{Path: "/data", Bytes: 1 << 30, Shared: true}},
		"block": {claimOn(local, func(c *corev1.PersistentVolumeClaim) { c.Spec.VolumeMode = &block }),
			workspace.Claim{Path: "/dev/disk", Bytes: 1 << 30, Block: true}},
	} {
		t.Run(name, func(t *testing.T) {
			reader := fake.NewClientBuilder().WithObjects(tt.objects...).Build()
			got, err := domainctrl.VolumeClaims{Reader: reader}.Locate(t.Context(), "ns", "data")
			if err != nil || got != tt.want {
				t.Fatalf("%+v, %v; want %+v", got, err, tt.want)
			}
		})
	}
}

func TestVolumeClaims_HostPath(t *testing.T) {
	for want, source := range map[string]corev1.PersistentVolumeSource{
		"/data": {HostPath: &corev1.HostPathVolumeSource{Path: "/data"}}, "": {Local: &corev1.LocalVolumeSource{Path: "/local"}},
	} {
		c := domainctrl.VolumeClaims{Reader: fake.NewClientBuilder().WithObjects(claimOn(source)...).Build()}
		if got, err := c.HostPath(t.Context(), "pv"); err != nil || got != want {
			t.Errorf("%q, %v; want %q", got, err, want)
		}
		_, err := c.HostPath(t.Context(), "other")
		domainfixture.Says(t, err, "PersistentVolume other")
	}
}

func TestVolumeClaims_Unusable(t *testing.T) {
	for name, tt := range map[string]struct {
		objects []client.Object
		words   []string
	}{
		"missing": {nil, []string{"PersistentVolumeClaim ns/data"}},
		"pending": {claimOn(corev1.PersistentVolumeSource{}, func(c *corev1.PersistentVolumeClaim) { c.Status.Phase = corev1.ClaimPending }),
			[]string{"ns/data", "Pending", "not Bound"}},
		"other": {claimOn(corev1.PersistentVolumeSource{NFS: &corev1.NFSVolumeSource{}}), []string{"PersistentVolume pv", "hostPath"}},
	} {
		t.Run(name, func(t *testing.T) {
			reader := fake.NewClientBuilder().WithObjects(tt.objects...).Build()
			_, err := domainctrl.VolumeClaims{Reader: reader}.Locate(t.Context(), "ns", "data")
			domainfixture.Says(t, err, tt.words...)
		})
	}
}
