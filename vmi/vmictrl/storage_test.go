// SPDX-License-Identifier: Apache-2.0

package vmictrl_test

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	v1 "kubevirt.io/api/core/v1"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/virtloom/virtloom/handoff"
	"github.com/virtloom/virtloom/template"
	"github.com/virtloom/virtloom/vmi"
)

// withVolume adds a disk.
func withVolume(name string, source v1.VolumeSource) func(*v1.VirtualMachineInstance) {
	return func(g *v1.VirtualMachineInstance) {
		g.Spec.Domain.Devices.Disks = append(g.Spec.Domain.Devices.Disks, v1.Disk{Name: name})
		g.Spec.Volumes = append(g.Spec.Volumes, v1.Volume{Name: name, VolumeSource: source})
	}
}

// withClaim adds a disk named after its claim.
func withClaim(name string) func(*v1.VirtualMachineInstance) {
	return withVolume(name, v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{
		PersistentVolumeClaimVolumeSource: corev1.PersistentVolumeClaimVolumeSource{ClaimName: name}}})
}

// withTPM adds persistent state.
func withTPM(g *v1.VirtualMachineInstance) {
	g.Spec.Domain.Devices.TPM = &v1.TPMDevice{Persistent: ptr.To(true)}
}

var gigabyte = corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}

// claim creates a claim and its volume.
func (w *world) claim(name string, edit ...func(*corev1.PersistentVolumeClaim)) *corev1.PersistentVolumeClaim {
	w.t.Helper()
	c := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: name},
		Spec: corev1.PersistentVolumeClaimSpec{
			StorageClassName: ptr.To(""), AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany},
			Resources: corev1.VolumeResourceRequirements{Requests: gigabyte},
		}}
	for _, e := range edit {
		e(c)
	}
	w.volume(*c.Spec.StorageClassName, name)
	w.create(c)
	return c
}

// volume creates a PersistentVolume of a class for a claim.
func (w *world) volume(class, claim string) {
	w.t.Helper()
	v := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{GenerateName: w.ns + "-"},
		Spec: corev1.PersistentVolumeSpec{
			ClaimRef:         &corev1.ObjectReference{Namespace: w.ns, Name: claim},
			StorageClassName: class, Capacity: gigabyte, PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain,
			AccessModes:            []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany, corev1.ReadWriteOnce},
			PersistentVolumeSource: corev1.PersistentVolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/nowhere"}},
		}}
	w.create(v)
}

// class creates a StorageClass of the world without provisioner.
func (w *world) class(mode storagev1.VolumeBindingMode) string {
	w.t.Helper()
	name := w.ns + "-" + strings.ToLower(string(mode))
	w.create(&storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Provisioner: "kubernetes.io/no-provisioner", VolumeBindingMode: &mode})
	return name
}

// configure creates the world's configuration of KubeVirt, or changes it.
func (w *world) configure(edit func(*v1.KubeVirt)) {
	w.t.Helper()
	kv := &v1.KubeVirt{ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: "kubevirt"}}
	if w.Get(w.t.Context(), client.ObjectKeyFromObject(kv), kv) != nil {
		edit(kv)
		w.create(kv)
		return
	}
	edit(kv)
	if err := w.Update(w.t.Context(), kv); err != nil {
		w.t.Fatal(err)
	}
}

func stateClass(name string) func(*v1.KubeVirt) {
	return func(kv *v1.KubeVirt) { kv.Spec.Configuration.VMStateStorageClass = name }
}

// stateClaims lists the backend storage claims of the world.
func (w *world) stateClaims() []corev1.PersistentVolumeClaim {
	w.t.Helper()
	var list corev1.PersistentVolumeClaimList
	if err := w.List(w.t.Context(), &list, client.InNamespace(w.ns), client.HasLabels{"persistent-state-for"}); err != nil {
		w.t.Fatal(err)
	}
	return list.Items
}

func stateBound(w *world) {
	class := w.class(storagev1.VolumeBindingImmediate)
	w.configure(stateClass(class))
	w.start(onlyWatches)
	g := w.guest("guest", withTPM)
	w.awaitTrouble(g, vmi.ReasonBackendStorageNotReady, vmi.StateClaimName(g), "not Bound")
	claims := w.stateClaims()
	if len(claims) != 1 {
		w.t.Fatalf("%d claims of the guest's state", len(claims))
	}
	c := claims[0]
	if c.Name != vmi.StateClaimName(g) || c.Labels["persistent-state-for"] != g.Name || *c.Spec.StorageClassName != class || !metav1.IsControlledBy(&c, g) {
		w.t.Errorf("the claim is %+v of class %v", c.ObjectMeta, c.Spec.StorageClassName)
	}
	if pods := w.pods(); len(pods) != 0 {
		w.t.Errorf("there are %d Pods before the claim is bound", len(pods))
	}
	w.volume(class, c.Name)
	w.awaitPhase(g, v1.Scheduled)
	if c := condition(g, v1.VirtualMachineInstanceSynchronized); c.Type != "" {
		w.t.Errorf("the problem is resolved and still reported: %+v", c)
	}
	s := volumeOf(g, "persistent-state-for-this-vm")
	if s.PersistentVolumeClaimInfo == nil || s.PersistentVolumeClaimInfo.ClaimName != c.Name {
		w.t.Errorf("the status of the state's volume is %+v", s)
	}
	if n := w.writes(false)["create persistentvolumeclaims"]; n != 1 {
		w.t.Errorf("%d claims were created", n)
	}
	w.onePodEach(1)
}

// volumeOf returns the status of the volume.
func volumeOf(g *v1.VirtualMachineInstance, name string) v1.VolumeStatus {
	i := slices.IndexFunc(g.Status.VolumeStatus, func(s v1.VolumeStatus) bool { return s.Name == name })
	if i < 0 {
		return v1.VolumeStatus{}
	}
	return g.Status.VolumeStatus[i]
}

// stateLost: the backend storage volume is gone.
func stateLost(w *world) {
	c := w.claim("old", func(c *corev1.PersistentVolumeClaim) { c.Labels = map[string]string{"persistent-state-for": "guest"} })
	w.awaitClaim(c, corev1.ClaimBound)
	v := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: c.Spec.VolumeName}}
	w.delete(v)
	if err := w.Patch(w.t.Context(), v, client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"finalizers":null}}`))); err != nil {
		w.t.Fatal(err)
	}
	w.awaitClaim(c, corev1.ClaimLost)
	w.start(onlyWatches)
	g := w.guest("guest", withTPM)
	w.awaitTrouble(g, vmi.ReasonBackendStorageProbe, w.ns+"/old", "Lost")
	if pods := w.pods(); len(pods) != 0 {
		w.t.Errorf("there are %d Pods", len(pods))
	}
	if n := len(w.stateClaims()); n != 1 {
		w.t.Errorf("there are %d claims of the guest's state", n)
	}
}

func (w *world) awaitClaim(c *corev1.PersistentVolumeClaim, p corev1.PersistentVolumeClaimPhase) {
	w.t.Helper()
	w.eventually(func() string {
		if err := w.Get(w.t.Context(), client.ObjectKeyFromObject(c), c); err != nil || c.Status.Phase != p {
			return fmt.Sprintf("claim %s is %s, want %s (%v)", c.Name, c.Status.Phase, p, err)
		}
		return ""
	})
}

// stateByProfile: without the profile the access mode would be ReadWriteMany.
func stateByProfile(w *world) {
	class := w.class(storagev1.VolumeBindingImmediate)
	w.configure(stateClass(class))
	w.clusterObject(&cdiv1.StorageProfile{ObjectMeta: metav1.ObjectMeta{Name: class}, Status: cdiv1.StorageProfileStatus{
		ClaimPropertySets: []cdiv1.ClaimPropertySet{{AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}}}}})
	w.start(onlyWatches)
	g := w.guest("guest", withTPM)
	w.volume(class, vmi.StateClaimName(g))
	w.awaitPhase(g, v1.Scheduled)
	if claims := w.stateClaims(); len(claims) != 1 || !slices.Equal(claims[0].Spec.AccessModes, []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}) {
		w.t.Errorf("claims %+v", claims)
	}
}

func importAwaited(w *world) {
	w.start(onlyWatches)
	dv := w.importing("disk", cdiv1.ImportInProgress)
	w.awaitClaim(&corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: "disk"}}, corev1.ClaimBound)
	g := w.guest("guest", withDataVolume("disk"))
	w.awaitImport(g, corev1.ConditionFalse)
	if pods := w.pods(); len(pods) != 0 {
		w.t.Errorf("there are %d Pods before the import", len(pods))
	}
	w.filled(dv)
	w.awaitPhase(g, v1.Scheduled)
	if c := condition(g, v1.VirtualMachineInstanceDataVolumesReady); c.Status != corev1.ConditionTrue {
		w.t.Errorf("DataVolumesReady is %+v", c)
	}
	w.onePodEach(1)
}

// consuming creates a VMI whose claim waits for its first consumer, and awaits that Pod.
func (w *world) consuming() (*v1.VirtualMachineInstance, *cdiv1.DataVolume, corev1.Pod) {
	w.t.Helper()
	class := w.class(storagev1.VolumeBindingWaitForFirstConsumer)
	dv := w.importing("disk", cdiv1.WaitForFirstConsumer, func(c *corev1.PersistentVolumeClaim) { c.Spec.StorageClassName = &class })
	g := w.guest("guest", withDataVolume("disk"))
	w.await(g, "Provisioning", func() bool { return condition(g, v1.VirtualMachineInstanceProvisioning).Status == corev1.ConditionTrue })
	pod := w.awaitPods(1)[0]
	if pod.Name != template.TemporaryName(g) || pod.Annotations[v1.EphemeralProvisioningObject] != "true" || g.Status.Phase != v1.Pending {
		w.t.Errorf("phase %s, Pod %s with annotations %v", g.Status.Phase, pod.Name, pod.Annotations)
	}
	return g, dv, pod
}

func firstConsumer(w *world) {
	w.start(onlyWatches)
	g, dv, temporary := w.consuming()
	w.awaitClaim(&corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: "disk"}}, corev1.ClaimBound)
	w.filled(dv)
	w.awaitPhase(g, v1.Scheduled)
	w.awaitGone(&temporary)
	if pod := w.awaitPods(1)[0]; pod.Name != template.LauncherName(g) {
		w.t.Errorf("the guest is in Pod %s", pod.Name)
	}
	if c := condition(g, v1.VirtualMachineInstanceProvisioning); c.Type != "" {
		w.t.Errorf("there is a condition %+v", c)
	}
	if n := w.writes(false)["delete pods"]; n != 1 {
		w.t.Errorf("%d deletions", n)
	}
	w.onePodEach(2)
}

func firstConsumerFailed(w *world) {
	w.start(onlyWatches)
	g, _, pod := w.consuming()
	// The simulated kubelet overwrites the status with Running.
	w.eventually(func() string {
		if err := w.Get(w.t.Context(), client.ObjectKeyFromObject(&pod), &pod); err != nil || pod.Status.Phase != corev1.PodRunning {
			return fmt.Sprintf("the Pod is %s: %v", pod.Status.Phase, err)
		}
		return ""
	})
	w.podStatus(&pod, `{"status":{"phase":"Failed"}}`)
	w.await(g, "the end", func() bool { return g.Status.Phase == v1.Failed })
	if l := w.lease(g); l.State != handoff.Released {
		w.t.Errorf("the lease is %+v", l)
	}
	w.onePodEach(1)
}

// podStatus writes the status of a Pod as its kubelet does.
func (w *world) podStatus(pod *corev1.Pod, patch string) {
	w.t.Helper()
	// The simulated kubelet may write concurrently.
	w.eventually(func() string {
		if err := w.Status().Patch(w.t.Context(), pod, client.RawPatch("application/strategic-merge-patch+json", []byte(patch))); err != nil {
			return err.Error()
		}
		return ""
	})
}

func importFailed(w *world) {
	w.start(onlyWatches)
	dv := w.importing("disk", cdiv1.ImportInProgress)
	g := w.guest("guest", withDataVolume("disk"))
	w.awaitImport(g, corev1.ConditionFalse)
	if err := w.dvPhase(dv, cdiv1.Failed); err != nil {
		w.t.Fatal(err)
	}
	w.awaitPhase(g, v1.Failed)
	w.onePodEach(0)
}

// claimGrows: the status reports the volume's capacity and its growth.
func claimGrows(w *world) {
	w.start(onlyWatches)
	c := w.claim("disk")
	w.awaitClaim(c, corev1.ClaimBound)
	g := w.guest("guest", withClaim("disk"))
	w.awaitPhase(g, v1.Scheduled)
	info := func() v1.PersistentVolumeClaimInfo {
		return ptr.Deref(volumeOf(g, "disk").PersistentVolumeClaimInfo, v1.PersistentVolumeClaimInfo{})
	}
	if i := info(); i.ClaimName != "disk" || !i.Capacity.Storage().Equal(resource.MustParse("1Gi")) || ptr.Deref(i.FilesystemOverhead, "") != "0.055" {
		w.t.Errorf("handed over with %+v", g.Status.VolumeStatus)
	}
	w.node(g, handoff.Accept, v1.Running)
	patch := client.RawPatch("application/merge-patch+json", []byte(`{"status":{"capacity":{"storage":"2Gi"}}}`))
	if err := w.Status().Patch(w.t.Context(), c, patch); err != nil {
		w.t.Fatal(err)
	}
	w.await(g, "the new size", func() bool { i := info(); return i.Capacity.Storage().Equal(resource.MustParse("2Gi")) })
}

// overheadReported: the file system overhead comes from the only CDI.
func overheadReported(w *world) {
	class := w.class(storagev1.VolumeBindingImmediate)
	w.clusterObject(&cdiv1.CDI{ObjectMeta: metav1.ObjectMeta{Name: "cdi"}})
	w.clusterObject(&cdiv1.CDIConfig{ObjectMeta: metav1.ObjectMeta{Name: "config"}, Status: cdiv1.CDIConfigStatus{
		FilesystemOverhead: &cdiv1.FilesystemOverhead{Global: "0.1", StorageClass: map[string]cdiv1.Percent{class: "0.2"}}}})
	w.claim("plain")
	w.claim("special", func(c *corev1.PersistentVolumeClaim) { c.Spec.StorageClassName = &class })
	w.start(onlyWatches)
	g := w.guest("guest", withClaim("plain"), withClaim("special"))
	w.awaitPhase(g, v1.Scheduled)
	for name, want := range map[string]v1.Percent{"plain": "0.1", "special": "0.2"} {
		if i := volumeOf(g, name).PersistentVolumeClaimInfo; i == nil || ptr.Deref(i.FilesystemOverhead, "") != want {
			w.t.Errorf("volume %s has %+v, want an overhead of %s", name, i, want)
		}
	}
}

// machineGone: the finalizer of a VirtualMachine belongs to it, as long as it
// exists.
func machineGone(w *world) {
	w.start(onlyWatches)
	vm := &v1.VirtualMachine{ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: "guest"},
		Spec: v1.VirtualMachineSpec{RunStrategy: ptr.To(v1.RunStrategyAlways), Template: &v1.VirtualMachineInstanceTemplateSpec{}}}
	w.create(vm)
	g := w.guest("guest", func(g *v1.VirtualMachineInstance) {
		g.Finalizers = []string{v1.VirtualMachineControllerFinalizer}
		g.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(vm, v1.VirtualMachineGroupVersionKind)}
	})
	w.awaitPhase(g, v1.Scheduled)
	w.node(g, handoff.Accept, v1.Running)
	w.node(g, handoff.Release, v1.Succeeded)
	w.await(g, "the finalizer to go", func() bool { return !claimed(g) })
	if !slices.Contains(g.Finalizers, v1.VirtualMachineControllerFinalizer) {
		w.t.Errorf("finalizers %v", g.Finalizers)
	}
	w.delete(vm)
	w.eventually(func() string { // it may be garbage-collected with its owner
		if err := w.Get(w.t.Context(), client.ObjectKeyFromObject(g), g); client.IgnoreNotFound(err) != nil || err == nil && len(g.Finalizers) > 0 {
			return fmt.Sprintf("finalizers %v, %v", g.Finalizers, err)
		}
		return ""
	})
}
