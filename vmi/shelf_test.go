// SPDX-License-Identifier: Apache-2.0

package vmi

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	v1 "kubevirt.io/api/core/v1"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"
)

// shelf builds a snapshot of a VMI with storage.
type shelf struct{ Snapshot }

// newShelf returns a VMI in a phase, without volumes, maps or owners.
func newShelf(phase v1.VirtualMachineInstancePhase) *shelf {
	return &shelf{Snapshot{VMI: &v1.VirtualMachineInstance{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "guest", UID: "uid-guest"},
		Status:     v1.VirtualMachineInstanceStatus{Phase: phase},
	}}}
}

func (k *shelf) guest(change func(*v1.VirtualMachineInstance)) *shelf {
	change(k.VMI)
	return k
}

func (k *shelf) volume(name string, source v1.VolumeSource) *shelf {
	k.VMI.Spec.Volumes = append(k.VMI.Spec.Volumes, v1.Volume{Name: name, VolumeSource: source})
	return k
}

// pvc adds a volume with the claim of that name, dv one with that DataVolume.
func (k *shelf) pvc(name string) *shelf { return k.volume(name, pvcSource(name, false)) }
func (k *shelf) dv(name string) *shelf {
	return k.volume(name, v1.VolumeSource{DataVolume: &v1.DataVolumeSource{Name: name}})
}

func (k *shelf) hotDV(name string) *shelf {
	return k.volume(name, v1.VolumeSource{DataVolume: &v1.DataVolumeSource{Name: name, Hotpluggable: true}})
}

func pvcSource(claim string, hot bool) v1.VolumeSource {
	return v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{
		PersistentVolumeClaimVolumeSource: corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim}, Hotpluggable: hot,
	}}
}

func (k *shelf) claim(name string, change ...func(*corev1.PersistentVolumeClaim)) *shelf {
	c := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID("uid-claim-" + name)},
		Status:     corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimBound},
	}
	for _, f := range change {
		f(c)
	}
	if k.Storage.Claims == nil {
		k.Storage.Claims = map[string]*corev1.PersistentVolumeClaim{}
	}
	k.Storage.Claims[name] = c
	return k
}

// filled adds a claim and the DataVolume of the same name that populates it.
func (k *shelf) filled(name string, phase cdiv1.DataVolumePhase, change ...func(*cdiv1.DataVolume)) *shelf {
	return k.claim(name, filledBy(name)).dataVolume(name, phase, change...)
}

func (k *shelf) dataVolume(name string, phase cdiv1.DataVolumePhase, change ...func(*cdiv1.DataVolume)) *shelf {
	d := &cdiv1.DataVolume{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID("uid-dv-" + name)},
		Status:     cdiv1.DataVolumeStatus{Phase: phase},
	}
	for _, f := range change {
		f(d)
	}
	if k.Storage.DataVolumes == nil {
		k.Storage.DataVolumes = map[string]*cdiv1.DataVolume{}
	}
	k.Storage.DataVolumes[name] = d
	return k
}

func (k *shelf) class(name string, change ...func(*storagev1.StorageClass)) *shelf {
	c := &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: name}}
	for _, f := range change {
		f(c)
	}
	if k.Storage.Classes == nil {
		k.Storage.Classes = map[string]*storagev1.StorageClass{}
	}
	k.Storage.Classes[name] = c
	return k
}

// temporary adds a running temporary Pod of the VMI.
func (k *shelf) temporary(name string, change ...func(*corev1.Pod)) *shelf {
	p := helperPod(name, append([]func(*corev1.Pod){func(p *corev1.Pod) {
		p.Annotations = map[string]string{v1.EphemeralProvisioningObject: "true"}
		p.Labels = map[string]string{v1.AppLabel: "virt-launcher"}
	}}, change...)...)
	k.Pods = append(k.Pods, p)
	return k
}

// helperPod returns a running Pod with one ready container.
func helperPod(name string, change ...func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID("uid-" + name)},
		Status: corev1.PodStatus{Phase: corev1.PodRunning,
			ContainerStatuses: []corev1.ContainerStatus{{Name: "compute", Ready: true}}},
	}
	for _, f := range change {
		f(p)
	}
	return p
}

func goingAway(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: time.Unix(100, 0)} }

func inPodPhase(phase corev1.PodPhase) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Status.Phase = phase }
}

// filledBy makes a DataVolume the owner of a claim.
func filledBy(dv string) func(*corev1.PersistentVolumeClaim) {
	return ownedBy(metav1.OwnerReference{APIVersion: "cdi.kubevirt.io/v1beta1", Kind: "DataVolume", Name: dv, UID: types.UID("uid-dv-" + dv), Controller: ptr.To(true)})
}

func ownedBy(owners ...metav1.OwnerReference) func(*corev1.PersistentVolumeClaim) {
	return func(c *corev1.PersistentVolumeClaim) { c.OwnerReferences = append(c.OwnerReferences, owners...) }
}

func inClaimPhase(phase corev1.PersistentVolumeClaimPhase) func(*corev1.PersistentVolumeClaim) {
	return func(c *corev1.PersistentVolumeClaim) { c.Status.Phase = phase }
}

func ofClass(name string) func(*corev1.PersistentVolumeClaim) {
	return func(c *corev1.PersistentVolumeClaim) { c.Spec.StorageClassName = &name }
}

func asBlock(c *corev1.PersistentVolumeClaim) {
	c.Spec.VolumeMode = ptr.To(corev1.PersistentVolumeBlock)
}
