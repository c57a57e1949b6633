// SPDX-License-Identifier: Apache-2.0

package template_test

import (
	"fmt"
	"regexp"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/template"
	"github.com/virtloom/virtloom/template/render"
)

// ownerPod returns the VMI's Pod on node n1.
func ownerPod(tolerations ...corev1.Toleration) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: "virt-launcher-testvmi-x", Namespace: "default", UID: "owner-1",
			Labels: map[string]string{"kubevirt.io": "virt-launcher", "kubevirt.io/created-by": "1234", "changes": "often"},
		},
		Spec: corev1.PodSpec{NodeName: "n1", Tolerations: tolerations},
	}
}

// plugInput hotplugs volumes into the VMI R1.
func plugInput(t testing.TB, volumes ...string) template.Input {
	in := input(read(t, "r1.vmi.yaml"),
		claim("c1", corev1.PersistentVolumeFilesystem, corev1.ReadWriteOnce),
		claim("c2", corev1.PersistentVolumeBlock, corev1.ReadWriteMany),
		claim("c3", corev1.PersistentVolumeFilesystem, corev1.ReadWriteMany),
		claim("c4", corev1.PersistentVolumeFilesystem, corev1.ReadWriteMany),
	)
	in.VMI.Spec.Volumes = append(in.VMI.Spec.Volumes,
		v1.Volume{Name: "v1", VolumeSource: pvc("c1")},
		v1.Volume{Name: "v2", VolumeSource: v1.VolumeSource{DataVolume: &v1.DataVolumeSource{Name: "c2", Hotpluggable: true}}},
		v1.Volume{Name: "v3", VolumeSource: v1.VolumeSource{MemoryDump: &v1.MemoryDumpVolumeSource{
			PersistentVolumeClaimVolumeSource: v1.PersistentVolumeClaimVolumeSource{
				PersistentVolumeClaimVolumeSource: corev1.PersistentVolumeClaimVolumeSource{ClaimName: "c3"},
			},
		}}},
	)
	in.VMI.Spec.UtilityVolumes = []v1.UtilityVolume{{
		Name: "v4", PersistentVolumeClaimVolumeSource: corev1.PersistentVolumeClaimVolumeSource{ClaimName: "c4"},
	}}
	in.Hotplug = &render.Hotplug{Owner: ownerPod(), Volumes: volumes}
	return in
}

func attachmentPod(t *testing.T, in template.Input) *corev1.Pod {
	t.Helper()
	pod, err := template.Default().HotplugAttachment(in)
	if err != nil {
		t.Fatal(err)
	}
	return pod
}

func triggerPod(t *testing.T, in template.Input) *corev1.Pod {
	t.Helper()
	pod, err := template.Default().HotplugTrigger(in)
	if err != nil {
		t.Fatal(err)
	}
	return pod
}

// phases reports hotplugged volumes in a phase.
func phases(phase v1.VolumePhase, volumes ...string) func(*template.Input) {
	return func(in *template.Input) {
		for _, name := range volumes {
			in.VMI.Status.VolumeStatus = append(in.VMI.Status.VolumeStatus, v1.VolumeStatus{
				Name: name, Phase: phase, HotplugVolume: &v1.HotplugVolumeStatus{},
			})
		}
	}
}

func TestSpecR3(t *testing.T) { golden(t, "r3", attachmentPod(t, plugInput(t, "v1"))) }

// TestSpecHotplugPods is 9.2 and 9.3 on both kinds of Pods.
func TestSpecHotplugPods(t *testing.T) {
	yes, no, user := true, false, int64(107)
	propagation := corev1.MountPropagationHostToContainer
	for name, renderPod := range map[string]func(*testing.T, template.Input) *corev1.Pod{
		"attachment": attachmentPod, "trigger": triggerPod,
	} {
		t.Run(name, func(t *testing.T) {
			in := plugInput(t, "v1")
			in.Config.ImagePullPolicy, in.Config.ImagePullSecret = corev1.PullAlways, "launcher-pull"
			in.VMI.Spec.PriorityClassName = "important"
			pod := renderPod(t, in)
			c := container(t, pod, "hotplug-disk")
			if !regexp.MustCompile(`^hp-volume-[a-z2-7]{20}$`).MatchString(pod.Name) || pod.GenerateName != "" {
				t.Errorf("name %q, generateName %q", pod.Name, pod.GenerateName)
			}
			for what, diff := range map[string]string{
				"namespace": cmp.Diff("default", pod.Namespace),
				"owner": cmp.Diff([]metav1.OwnerReference{{
					APIVersion: "v1", Kind: "Pod", Name: "virt-launcher-testvmi-x", UID: "owner-1", Controller: &yes, BlockOwnerDeletion: &yes,
				}}, pod.OwnerReferences),
				"labels": cmp.Diff(map[string]string{"kubevirt.io": "hotplug-disk"}, pod.Labels),
				"owner name and UID": cmp.Diff([]string{"testvmi", "1234"},
					[]string{pod.Annotations["kubevirt.io/owner-vmi-name"], pod.Annotations["kubevirt.io/owner-vmi-uid"]}),
				"Q5: pull policy":    cmp.Diff(corev1.PullAlways, c.ImagePullPolicy),
				"Q5: pull secret":    cmp.Diff([]corev1.LocalObjectReference{{Name: "launcher-pull"}}, pod.Spec.ImagePullSecrets),
				"Q5: priority class": cmp.Diff("important", pod.Spec.PriorityClassName),
				"image":              cmp.Diff("example.com/virt-launcher:v1", c.Image),
				"requests":           cmp.Diff(list("cpu", "10m", "memory", "2M"), c.Resources.Requests),
				"limits":             cmp.Diff(list("cpu", "100m", "memory", "80M"), c.Resources.Limits),
				"security": cmp.Diff(&corev1.SecurityContext{
					AllowPrivilegeEscalation: &no, RunAsNonRoot: &yes, RunAsUser: &user,
					SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
					Capabilities:   &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
					SELinuxOptions: &corev1.SELinuxOptions{Level: "s0:c10,c20"},
				}, c.SecurityContext),
				"first mount": cmp.Diff(corev1.VolumeMount{
					Name: "hotplug-disks", MountPath: "/path", MountPropagation: &propagation,
				}, c.VolumeMounts[0]),
				"grace period": cmp.Diff(new(int64), pod.Spec.TerminationGracePeriodSeconds),
				"left to the API server": cmp.Diff([]any{corev1.RestartPolicy(""), "", (*bool)(nil)},
					[]any{pod.Spec.RestartPolicy, pod.Spec.ServiceAccountName, pod.Spec.AutomountServiceAccountToken}),
			} {
				if diff != "" {
					t.Errorf("%s:\n%s", what, diff)
				}
			}
		})
	}
}

func TestSpecHotplugResources(t *testing.T) {
	configured := func(in *template.Input) {
		in.Config.ContainerResources = []v1.SupportContainerResources{
			{Type: v1.HotplugAttachment, Resources: v1.ResourceRequirementsWithoutClaims{
				Requests: list("cpu", "20m", "memory", "0"), Limits: list("memory", "90M"),
			}},
			{Type: v1.SideCar, Resources: v1.ResourceRequirementsWithoutClaims{Limits: list("memory", "7M")}},
		}
	}
	for name, tc := range map[string]struct {
		given            func(*template.Input)
		requests, limits corev1.ResourceList
	}{
		"default": {func(*template.Input) {}, list("cpu", "10m", "memory", "2M"), list("cpu", "100m", "memory", "80M")},
		"119: dedicated CPUs change nothing": {func(in *template.Input) { in.VMI.Spec.Domain.CPU.DedicatedCPUPlacement = true },
			list("cpu", "10m", "memory", "2M"), list("cpu", "100m", "memory", "80M")},
		"guaranteed quality of service changes nothing": {func(in *template.Input) {
			requests("cpu", "1", "memory", "1Gi")(in.VMI)
			limits("cpu", "1", "memory", "1Gi")(in.VMI)
		}, list("cpu", "10m", "memory", "2M"), list("cpu", "100m", "memory", "80M")},
		"configured, zero is unset": {configured, list("cpu", "20m", "memory", "2M"), list("cpu", "100m", "memory", "90M")},
	} {
		t.Run(name, func(t *testing.T) {
			in := plugInput(t, "v1")
			tc.given(&in)
			got := container(t, attachmentPod(t, in), "hotplug-disk").Resources
			if diff := cmp.Diff(corev1.ResourceRequirements{Requests: tc.requests, Limits: tc.limits}, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// held are an attachment Pod's volumes: their names in order, the mounts and the devices.
type held struct{ Volumes, Mounts, Devices []string }

func heldBy(t *testing.T, pod *corev1.Pod) (h held) {
	c := container(t, pod, "hotplug-disk")
	for _, v := range pod.Spec.Volumes {
		source := "emptyDir"
		if p := v.PersistentVolumeClaim; p != nil {
			source = fmt.Sprintf("%s,readOnly=%t", p.ClaimName, p.ReadOnly)
		}
		h.Volumes = append(h.Volumes, v.Name+"="+source)
	}
	for _, m := range c.VolumeMounts {
		h.Mounts = append(h.Mounts, m.Name+"="+m.MountPath)
	}
	for _, d := range c.VolumeDevices {
		h.Devices = append(h.Devices, d.Name+"="+d.DevicePath)
	}
	return h
}

func TestSpecAttachmentVolumes(t *testing.T) {
	const folder, mount = "hotplug-disks=emptyDir", "hotplug-disks=/path"
	const c1, c2, c3, c4 = "v1=c1,readOnly=false", "v2=c2,readOnly=false", "v3=c3,readOnly=false", "v4=c4,readOnly=false"
	const block = "v2=/path/v2/pvc-c2"
	migrating := func(in *template.Input) { in.Migration = &render.Migration{UID: "m-1", Name: "move"} }
	for name, tc := range map[string]struct {
		volumes []string
		given   []func(*template.Input)
		want    held
	}{
		"file system":                {[]string{"v1"}, nil, held{[]string{folder, c1}, []string{mount, "v1=/v1"}, nil}},
		"block device of DataVolume": {[]string{"v2"}, nil, held{[]string{folder, c2}, []string{mount}, []string{block}}},
		"memory dump":                {[]string{"v3"}, nil, held{[]string{folder, c3}, []string{mount, "v3=/v3"}, nil}},
		"utility volume":             {[]string{"v4"}, nil, held{[]string{folder, c4}, []string{mount, "v4=/v4"}, nil}},
		"in the order given": {[]string{"v4", "v2", "v1", "v3"}, nil, held{
			[]string{folder, c4, c2, c1, c3}, []string{mount, "v4=/v4", "v1=/v1", "v3=/v3"}, []string{block},
		}},
		"named twice": {[]string{"v1", "v1"}, nil, held{[]string{folder, c1}, []string{mount, "v1=/v1"}, nil}},
		"what the guest has is not mounted, its devices stay": {
			[]string{"v1", "v2", "v3"}, []func(*template.Input){phases(v1.VolumeReady, "v1", "v2"), phases(v1.HotplugVolumeMounted, "v3")},
			held{[]string{folder, c1, c2, c3}, []string{mount}, []string{block}},
		},
		"what is on its way is mounted": {
			[]string{"v1", "v3"}, []func(*template.Input){phases(v1.HotplugVolumeAttachedToNode, "v1"), phases(v1.HotplugVolumeDetaching, "v3")},
			held{[]string{folder, c1, c3}, []string{mount, "v1=/v1", "v3=/v3"}, nil},
		},
		"a status without hotplug does not count": {
			[]string{"v1"}, []func(*template.Input){func(in *template.Input) {
				in.VMI.Status.VolumeStatus = []v1.VolumeStatus{{Name: "v1", Phase: v1.VolumeReady}}
			}}, held{[]string{folder, c1}, []string{mount, "v1=/v1"}, nil},
		},
		"a migration's target has nothing yet": {
			[]string{"v1", "v2"}, []func(*template.Input){phases(v1.VolumeReady, "v1", "v2"), migrating},
			held{[]string{folder, c1, c2}, []string{mount, "v1=/v1"}, []string{block}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			in := plugInput(t, tc.volumes...)
			for _, change := range tc.given {
				change(&in)
			}
			if diff := cmp.Diff(tc.want, heldBy(t, attachmentPod(t, in))); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestSpecAttachment_OwnerNode(t *testing.T) {
	seconds := int64(300)
	taint := func(key string) corev1.Toleration {
		return corev1.Toleration{Key: "node.kubernetes.io/" + key, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoSchedule}
	}
	evicted := func() corev1.Toleration {
		return corev1.Toleration{Key: "node.kubernetes.io/not-ready", Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute, TolerationSeconds: &seconds}
	}
	gpu := corev1.Toleration{Key: "gpu", Operator: corev1.TolerationOpEqual, Value: "yes"}
	for name, tc := range map[string]struct{ owner, want []corev1.Toleration }{
		"no tolerations": {nil, []corev1.Toleration{
			taint("disk-pressure"), taint("memory-pressure"), taint("network-unavailable"), taint("pid-pressure"), taint("unschedulable"),
		}},
		"sorted by key, duplicates once": {
			[]corev1.Toleration{taint("unschedulable"), evicted(), gpu, evicted()},
			[]corev1.Toleration{
				gpu, taint("disk-pressure"), taint("memory-pressure"), taint("network-unavailable"), evicted(),
				taint("pid-pressure"), taint("unschedulable"),
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			in := plugInput(t, "v1")
			in.Hotplug.Owner = ownerPod(tc.owner...)
			spec := attachmentPod(t, in).Spec
			if diff := cmp.Diff(tc.want, spec.Tolerations); diff != "" {
				t.Error(diff)
			}
			want := &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
				RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
					MatchExpressions: []corev1.NodeSelectorRequirement{{
						Key: "kubernetes.io/hostname", Operator: corev1.NodeSelectorOpIn, Values: []string{"n1"},
					}},
				}}},
			}}
			if diff := cmp.Diff(want, spec.Affinity); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestSpecHotplugSELinux(t *testing.T) {
	source := func(context string) *v1.VirtualMachineInstanceMigrationState {
		state := &v1.VirtualMachineInstanceMigrationSourceState{}
		state.SelinuxContext = context
		return &v1.VirtualMachineInstanceMigrationState{SourceState: state}
	}
	const status, sending = "status.selinuxContext", "status.migrationState.sourceState.selinuxContext"
	for name, tc := range map[string]struct {
		context string
		state   *v1.VirtualMachineInstanceMigrationState
		level   string
		field   string
		err     error
	}{
		"level with categories":         {"u:r:t:s0:c1,c2", nil, "s0:c1,c2", "", nil},
		"range of levels":               {"u:r:t:s0-s0:c1,c2:c3", nil, "s0-s0:c1,c2:c3", "", nil},
		"no SELinux":                    {"none", nil, "s0", "", nil},
		"the guest's own context wins":  {"u:r:t:s0:c1", source("u:r:t:s0:c9"), "s0:c1", "", nil},
		"received guest":                {"", source("u:r:t:s0:c9"), "s0:c9", "", nil},
		"received without SELinux":      {"", source("none"), "s0", "", nil},
		"missing":                       {"", nil, "", status, render.ErrMissingFact},
		"missing on both sides":         {"", source(""), "", status, render.ErrMissingFact},
		"missing, migration not begun":  {"", &v1.VirtualMachineInstanceMigrationState{}, "", status, render.ErrMissingFact},
		"garbage":                       {"u:r:t", nil, "", status, render.ErrInvalid},
		"without level":                 {"u:r:t:", nil, "", status, render.ErrInvalid},
		"garbage from the sending side": {"", source("garbage"), "", sending, render.ErrInvalid},
	} {
		t.Run(name, func(t *testing.T) {
			in := plugInput(t, "v1")
			in.Config.SELinuxLauncherType = "virt_launcher.process"
			in.VMI.Status.SelinuxContext, in.VMI.Status.MigrationState = tc.context, tc.state
			attached, err := template.Default().HotplugAttachment(in)
			triggered, triggerErr := template.Default().HotplugTrigger(in)
			if tc.err != nil {
				wantError(t, err, tc.field, tc.err)
				wantError(t, triggerErr, tc.field, tc.err)
				return
			}
			if err != nil || triggerErr != nil {
				t.Fatal(err, triggerErr)
			}
			got := []*corev1.SELinuxOptions{
				attached.Spec.Containers[0].SecurityContext.SELinuxOptions, triggered.Spec.Containers[0].SecurityContext.SELinuxOptions,
			}
			want := []*corev1.SELinuxOptions{{Level: tc.level, Type: "virt_launcher.process"}, {Level: tc.level}}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("attachment and trigger:\n%s", diff)
			}
		})
	}
}

func TestSpecAttachment_MigrationTarget(t *testing.T) {
	in := plugInput(t, "v1")
	if pod := attachmentPod(t, in); pod.Labels["kubevirt.io/migrationJobUID"] != "" {
		t.Errorf("marked without a migration: %v", pod.Labels)
	}
	in.Migration = &render.Migration{UID: "m-1", Name: "move"}
	pod := attachmentPod(t, in)
	if diff := cmp.Diff(map[string]string{"kubevirt.io": "hotplug-disk", "kubevirt.io/migrationJobUID": "m-1"}, pod.Labels); diff != "" {
		t.Error(diff)
	}
	if pod.Annotations["kubevirt.io/migrationJobName"] != "move" || pod.Spec.Affinity.PodAntiAffinity != nil {
		t.Errorf("annotations %v, affinity %v", pod.Annotations, pod.Spec.Affinity)
	}
}

func TestSpecTriggers(t *testing.T) {
	seconds := int64(300)
	tolerations := []corev1.Toleration{{Key: "b", TolerationSeconds: &seconds}, {Key: "a"}}
	copyPath := []string{"/bin/sh", "-c", "/usr/bin/container-disk --copy-path /path/hp"}
	root := int64(0)
	for name, tc := range map[string]struct {
		volume  string
		keep    bool
		command []string
		held    held
		context *corev1.PodSecurityContext
	}{
		"149: file system": {"v1", false, []string{"/bin/bash", "-c", "exit", "0"},
			held{[]string{"v1=c1,readOnly=false", "hotplug-disks=emptyDir"}, []string{"hotplug-disks=/path", "v1=/pvc"}, nil}, nil},
		"149: block": {"v2", false, []string{"/bin/bash", "-c", "exit", "0"},
			held{[]string{"v2=c2,readOnly=false", "hotplug-disks=emptyDir"}, []string{"hotplug-disks=/path"}, []string{"v2=/dev/hotplugblockdevice"}},
			&corev1.PodSecurityContext{RunAsUser: &root}},
		"149: kept running": {"v1", true, copyPath,
			held{[]string{"v1=c1,readOnly=false", "hotplug-disks=emptyDir"}, []string{"hotplug-disks=/path", "v1=/pvc"}, nil}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			in := plugInput(t, tc.volume)
			in.Hotplug.Owner, in.Hotplug.KeepRunning = ownerPod(tolerations...), tc.keep
			in.Migration = &render.Migration{UID: "m-1", Name: "move"} // ignored by a trigger
			pod := triggerPod(t, in)
			annotations := map[string]string{"kubevirt.io/owner-vmi-name": "testvmi", "kubevirt.io/owner-vmi-uid": "1234"}
			if !tc.keep {
				annotations["kubevirt.io/ephemeral-provisioning"] = "true"
			}
			for what, diff := range map[string]string{
				"annotations":      cmp.Diff(annotations, pod.Annotations),
				"labels":           cmp.Diff(map[string]string{"kubevirt.io": "hotplug-disk"}, pod.Labels),
				"command":          cmp.Diff(tc.command, pod.Spec.Containers[0].Command),
				"volumes":          cmp.Diff(tc.held, heldBy(t, pod)),
				"security context": cmp.Diff(tc.context, pod.Spec.SecurityContext),
				"tolerations":      cmp.Diff(tolerations, pod.Spec.Tolerations),
				"Q7: affinity": cmp.Diff(&corev1.Affinity{PodAffinity: &corev1.PodAffinity{
					RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{
						LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"kubevirt.io/created-by": "1234"}},
						TopologyKey:   "kubernetes.io/hostname",
					}},
				}}, pod.Spec.Affinity),
			} {
				if diff != "" {
					t.Errorf("%s:\n%s", what, diff)
				}
			}
		})
	}
}
