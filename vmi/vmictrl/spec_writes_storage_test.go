// SPDX-License-Identifier: Apache-2.0

package vmictrl_test

import (
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	v1 "kubevirt.io/api/core/v1"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"
)

const stateLabel = "persistent-state-for"

// storageRows cover claims, and require CDI's kinds.
var storageRows = map[string]row{
	"20 an import is under way":                                  {scene: importing(cdiv1.ImportInProgress)},
	"22, 23 a claim waits for a first consumer, which then runs": {scene: importing(cdiv1.WaitForFirstConsumer), then: steps{consumerRuns}},
	"25 the first consumer has done its work (better: the guest's Pod comes without another wait)": {
		scene: importing(cdiv1.WaitForFirstConsumer), then: steps{consumerRuns, consumed}},
	"26 a Pod of somebody else is no first consumer": {scene: scene{phase: v1.Pending, more: foreignConsumer}},
	"28 an import has failed":                        {scene: importing(cdiv1.Failed)},
	"31 the state's claim is bound when the Pod is placed": {scene: scene{phase: v1.Pending, guest: withTPM,
		before: stateClassOf(storagev1.VolumeBindingWaitForFirstConsumer)}},
	"32 the firmware's state needs a claim": {scene: scene{phase: v1.Pending, guest: withFirmware, before: stateClassOf(storagev1.VolumeBindingImmediate)}},
	"32 changes of blocks are kept in a claim": {scene: scene{phase: v1.Pending, before: stateClassOf(storagev1.VolumeBindingImmediate),
		guest: tracking(v1.ChangedBlockTrackingInitializing)}},
	"34 there is no state to be kept any more": {scene: scene{phase: v1.Pending, guest: tracking(v1.ChangedBlockTrackingDisabled), more: ownedState}},
	"35 the state is lost":                     {scene: scene{phase: v1.Pending, guest: withTPM, before: lostState}},
	"128 the state belongs to the VirtualMachine": {scene: scene{phase: v1.Pending, guest: withTPM, more: ownedByMachine,
		before: stateClassOf(storagev1.VolumeBindingWaitForFirstConsumer)}},

	"49 what is plugged does not hold up the hand-over":         {scene: scene{phase: v1.Scheduling, guest: plugs("disk"), before: bound("disk")}},
	"91 a plugged volume is taken away before the guest has it": {scene: withPlug("disk"), then: steps{unplugs}},
	"91 a plugged volume is taken away that the guest has":      {scene: withPlug("disk"), then: steps{attaches, says(v1.VolumeReady), unplugs}},
	"92 a plugged volume is taken away, and the guest lets it go": {scene: withPlug("disk"),
		then: steps{attaches, says(v1.VolumeReady), unplugs, says(v1.HotplugVolumeUnMounted)}},
	"97 the state is reported by its current name": {scene: scene{phase: v1.Running, before: oldState, guest: func(g *v1.VirtualMachineInstance) {
		withTPM(g)
		g.Status.VolumeStatus = []v1.VolumeStatus{{Name: "persistent-state-for-guest"}}
	}}},
	"116 the claim of a running guest has gone (better: no event each pass)": {scene: scene{phase: v1.Running, guest: withClaim("data"),
		pod: func(p *corev1.Pod) {
			p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: "data", VolumeSource: corev1.VolumeSource{
				PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"}}})
		}}},
	"122 volumes are reported by name": {scene: scene{phase: v1.Scheduling, guest: func(g *v1.VirtualMachineInstance) {
		withVolume("zeta", v1.VolumeSource{EmptyDisk: &v1.EmptyDiskSource{}})(g)
		withVolume("alpha", v1.VolumeSource{EmptyDisk: &v1.EmptyDiskSource{}})(g)
	}}},
}

// importing is a VMI whose disk a DataVolume populates.
func importing(p cdiv1.DataVolumePhase) scene {
	return scene{phase: v1.Pending, guest: withDataVolume("disk"), before: func(w *world) {
		class := w.class(storagev1.VolumeBindingWaitForFirstConsumer)
		w.importing("disk", p, func(c *corev1.PersistentVolumeClaim) { c.Spec.StorageClassName = &class })
	}}
}

// consumerRuns makes the temporary Pod Running.
func consumerRuns(w *world, _ *v1.VirtualMachineInstance) {
	for _, p := range w.pods() {
		if _, temporary := p.Annotations[v1.EphemeralProvisioningObject]; temporary {
			w.podStatus(&p, `{"status":{"phase":"Running"}}`)
		}
	}
}

func consumed(w *world, _ *v1.VirtualMachineInstance) {
	w.filled(&cdiv1.DataVolume{ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: "disk"}})
}

// foreignConsumer creates a Pod that looks like a temporary Pod of the VMI.
func foreignConsumer(w *world, g *v1.VirtualMachineInstance, _ *corev1.Pod) {
	w.createPod(&corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: "foreign", Labels: map[string]string{v1.CreatedByLabel: string(g.UID)},
			Annotations: map[string]string{v1.EphemeralProvisioningObject: "true"}},
		Spec:   corev1.PodSpec{NodeName: nodeOf(w), Containers: []corev1.Container{{Name: "compute", Image: image}}},
		Status: corev1.PodStatus{Phase: corev1.PodRunning},
	})
}

// stateClassOf creates a class for backend storage.
func stateClassOf(mode storagev1.VolumeBindingMode) func(*world) {
	return func(w *world) { w.configure(stateClass(w.class(mode))) }
}

func withFirmware(g *v1.VirtualMachineInstance) {
	g.Spec.Domain.Firmware = &v1.Firmware{Bootloader: &v1.Bootloader{EFI: &v1.EFI{Persistent: ptr.To(true)}}}
}

func tracking(state v1.ChangedBlockTrackingState) func(*v1.VirtualMachineInstance) {
	return func(g *v1.VirtualMachineInstance) {
		g.Status.ChangedBlockTracking = &v1.ChangedBlockTrackingStatus{State: state}
	}
}

// ownedState creates a backend storage claim of the VMI.
func ownedState(w *world, g *v1.VirtualMachineInstance, _ *corev1.Pod) {
	w.claim("state", func(c *corev1.PersistentVolumeClaim) {
		c.Labels = map[string]string{stateLabel: g.Name}
		c.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(g, v1.VirtualMachineInstanceGroupVersionKind)}
	})
}

// oldState creates a backend storage claim with KubeVirt's legacy name.
func oldState(w *world) {
	c := w.claim("persistent-state-for-guest")
	w.awaitClaim(c, corev1.ClaimBound)
}

// lostState creates a backend storage claim whose volume is gone.
func lostState(w *world) {
	c := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: "state", Labels: map[string]string{stateLabel: vmiName},
			Annotations: map[string]string{"pv.kubernetes.io/bind-completed": "yes"}},
		Spec: corev1.PersistentVolumeClaimSpec{
			StorageClassName: ptr.To(""), VolumeName: "gone", AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources: corev1.VolumeResourceRequirements{Requests: gigabyte},
		}}
	w.create(c)
	w.awaitClaim(c, corev1.ClaimLost)
}

// plugs adds a disk that is not in the Pod.
func plugs(claim string) func(*v1.VirtualMachineInstance) {
	return func(g *v1.VirtualMachineInstance) {
		withClaim(claim)(g)
		g.Spec.Volumes[len(g.Spec.Volumes)-1].PersistentVolumeClaim.Hotpluggable = true
		g.Status.SelinuxContext = "none"
	}
}

// steps are run in order.
type steps = []func(*world, *v1.VirtualMachineInstance)

// withPlug is a running VMI with a volume to be hotplugged.
func withPlug(claim string) scene {
	return scene{phase: v1.Running, guest: plugs(claim), before: bound(claim)}
}

func unplugs(w *world, g *v1.VirtualMachineInstance) { w.unplug(g, "disk") }

func says(p v1.VolumePhase) func(*world, *v1.VirtualMachineInstance) {
	return func(w *world, g *v1.VirtualMachineInstance) { w.nodeSays(g, "disk", p) }
}

// attaches makes the attachment Pod Running.
func attaches(w *world, _ *v1.VirtualMachineInstance) {
	for _, p := range w.pods() {
		if p.Labels[v1.AppLabel] == "hotplug-disk" {
			w.podStatus(&p, `{"status":{"phase":"Running","containerStatuses":[{"name":"hotplug-disk","ready":true}]}}`)
		}
	}
}

func bound(claim string) func(*world) {
	return func(w *world) { w.boundClaim(claim) }
}
