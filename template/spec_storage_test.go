// SPDX-License-Identifier: Apache-2.0

package template_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/template"
	"github.com/virtloom/virtloom/template/render"
)

func persistentTPM(vmi *v1.VirtualMachineInstance) {
	vmi.Spec.Domain.Devices.TPM = &v1.TPMDevice{Persistent: new(true)}
}

func persistentEFI(vmi *v1.VirtualMachineInstance) {
	vmi.Spec.Domain.Firmware = &v1.Firmware{Bootloader: &v1.Bootloader{EFI: &v1.EFI{Persistent: new(true)}}}
}

func changedBlocks(state v1.ChangedBlockTrackingState) change {
	return func(vmi *v1.VirtualMachineInstance) {
		vmi.Status.ChangedBlockTracking = &v1.ChangedBlockTrackingStatus{State: state}
	}
}

// stateOf adds a claim with labels, as key=value.
func stateOf(name string, labels ...string) func(*template.Input) {
	return func(in *template.Input) {
		claim(name, corev1.PersistentVolumeFilesystem, corev1.ReadWriteOnce)(in)
		in.Facts.Claims[name].Labels = map[string]string{}
		for _, l := range labels {
			key, value, _ := strings.Cut(l, "=")
			in.Facts.Claims[name].Labels[key] = value
		}
	}
}

func changeClaim(name string, f func(*corev1.PersistentVolumeClaim)) func(*template.Input) {
	return func(in *template.Input) { f(in.Facts.Claims[name]) }
}

// TestSpecBackendStorage is section 6.3: the mounts, as root and as qemu's user.
func TestSpecBackendStorage(t *testing.T) {
	const meta = "vm-state:/run/kubevirt-private/backend-storage-meta:meta"
	asUser := []string{meta, "private-libvirt:/var/run/kubevirt-private/libvirt", "private-libvirt-qemu:/var/run/kubevirt-private/libvirt/qemu"}
	for name, tc := range map[string]struct {
		vmi  []change
		want []string
	}{
		"TPM as root": {[]change{persistentTPM}, []string{meta,
			"vm-state:/var/lib/libvirt/swtpm:swtpm", "vm-state:/var/lib/swtpm-localca:swtpm-localca"}},
		"TPM": {[]change{persistentTPM, asNonRoot}, append(slices.Clone(asUser),
			"vm-state:/var/run/kubevirt-private/libvirt/qemu/swtpm:swtpm", "vm-state:/var/run/kubevirt-private/var/lib/swtpm-localca:swtpm-localca")},
		"EFI as root": {[]change{persistentEFI}, []string{meta, "vm-state:/var/lib/libvirt/qemu/nvram:nvram"}},
		"EFI": {[]change{persistentEFI, asNonRoot}, append(slices.Clone(asUser),
			"vm-state:/var/run/kubevirt-private/libvirt/qemu/nvram:nvram")},
		"changed blocks as root": {[]change{changedBlocks(v1.ChangedBlockTrackingEnabled)}, []string{meta, "vm-state:/var/lib/libvirt/qemu/cbt:cbt"}},
		"changed blocks": {[]change{changedBlocks(v1.ChangedBlockTrackingInitializing), asNonRoot}, append(slices.Clone(asUser),
			"vm-state:/var/run/kubevirt-private/libvirt/qemu/cbt:cbt")},
		"all": {[]change{changedBlocks(v1.ChangedBlockTrackingEnabled), persistentEFI, persistentTPM}, []string{meta,
			"vm-state:/var/lib/libvirt/swtpm:swtpm", "vm-state:/var/lib/swtpm-localca:swtpm-localca",
			"vm-state:/var/lib/libvirt/qemu/nvram:nvram", "vm-state:/var/lib/libvirt/qemu/cbt:cbt"}},
		"tracking is off": {[]change{changedBlocks(v1.ChangedBlockTrackingDisabled)}, nil},
		"TPM that forgets": {[]change{func(vmi *v1.VirtualMachineInstance) {
			vmi.Spec.Domain.Devices.TPM = &v1.TPMDevice{}
		}}, nil},
		"TPM that is off": {[]change{func(vmi *v1.VirtualMachineInstance) {
			vmi.Spec.Domain.Devices.TPM = &v1.TPMDevice{Enabled: new(bool), Persistent: new(true)}
		}}, nil},
		"EFI that forgets": {[]change{func(vmi *v1.VirtualMachineInstance) {
			vmi.Spec.Domain.Firmware = &v1.Firmware{Bootloader: &v1.Bootloader{EFI: &v1.EFI{Persistent: new(bool)}}}
		}}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			pod := presetLauncher(t, newVMI(tc.vmi...), stateOf("state", "persistent-state-for=testvmi"))
			got := slices.DeleteFunc(mountsOf(container(t, pod, "compute")), func(m string) bool {
				return !strings.HasPrefix(m, "vm-state:") && !strings.HasPrefix(m, "private-libvirt")
			})
			if diff := cmp.Diff(tc.want, got); diff != "" && len(tc.want)+len(got) > 0 {
				t.Error(diff)
			}
			c := podVolumes(pod)["vm-state"].PersistentVolumeClaim
			if (c != nil) != (tc.want != nil) || (c != nil && c.ClaimName != "state") {
				t.Errorf("volume vm-state is %v", c)
			}
		})
	}
}

// TestSpecBackendClaims is case 140 and the choice of the claim in section 6.3.
func TestSpecBackendClaims(t *testing.T) {
	labelled := func(name string) func(*template.Input) { return stateOf(name, "persistent-state-for=testvmi") }
	deleted := func(name string) func(*template.Input) {
		return changeClaim(name, func(c *corev1.PersistentVolumeClaim) { c.DeletionTimestamp = &metav1.Time{Time: time.Unix(1, 0)} })
	}
	made := func(name string, at int64) func(*template.Input) {
		return changeClaim(name, func(c *corev1.PersistentVolumeClaim) { c.CreationTimestamp = metav1.Unix(at, 0) })
	}
	moves := func(in *template.Input) {
		in.Migration = &render.Migration{UID: "m", Name: "move", SourcePod: &corev1.Pod{}}
		in.VMI.Status.SelinuxContext = "none"
	}
	named := func(uid, claim string) func(*template.Input) {
		return func(in *template.Input) {
			in.VMI.Status.MigrationState = &v1.VirtualMachineInstanceMigrationState{MigrationUID: "m", TargetPersistentStatePVCName: claim}
			if uid != "" {
				in.VMI.Status.MigrationState.MigrationUID = "older"
			}
		}
	}
	forTarget := stateOf("b", "kubevirt.io/migrationName=move")
	for name, tc := range map[string]struct {
		given []func(*template.Input)
		want  string
		err   error
	}{
		"by label":                     {[]func(*template.Input){stateOf("a"), labelled("b")}, "b", nil},
		"by name":                      {[]func(*template.Input){stateOf("persistent-state-for-testvmi")}, "persistent-state-for-testvmi", nil},
		"label wins over name":         {[]func(*template.Input){stateOf("persistent-state-for-testvmi"), labelled("z")}, "z", nil},
		"another guest's":              {[]func(*template.Input){stateOf("a", "persistent-state-for=other")}, "", render.ErrMissingFact},
		"another namespace's":          {[]func(*template.Input){labelled("a"), changeClaim("a", func(c *corev1.PersistentVolumeClaim) { c.Namespace = "other" })}, "", render.ErrMissingFact},
		"deleted":                      {[]func(*template.Input){labelled("a"), deleted("a")}, "", render.ErrMissingFact},
		"deleted, by name":             {[]func(*template.Input){stateOf("persistent-state-for-testvmi"), deleted("persistent-state-for-testvmi")}, "", render.ErrMissingFact},
		"none":                         {nil, "", render.ErrMissingFact},
		"newest of two":                {[]func(*template.Input){labelled("a"), labelled("b"), labelled("c"), made("a", 1), made("b", 3), made("c", 2)}, "b", nil},
		"first of two as old":          {[]func(*template.Input){labelled("b"), labelled("a")}, "a", nil},
		"block device":                 {[]func(*template.Input){labelled("a"), changeClaim("a", func(c *corev1.PersistentVolumeClaim) { c.Spec.VolumeMode = new(corev1.PersistentVolumeBlock) })}, "", render.ErrInvalid},
		"140: target by label":         {[]func(*template.Input){labelled("a"), forTarget, moves}, "b", nil},
		"target named by the VMI":      {[]func(*template.Input){labelled("a"), forTarget, stateOf("c"), moves, named("", "c")}, "c", nil},
		"an earlier migration's":       {[]func(*template.Input){labelled("a"), forTarget, moves, named("older", "a")}, "b", nil},
		"target named by migration":    {[]func(*template.Input){labelled("a"), forTarget, moves, named("", "b"), func(in *template.Input) { in.Migration.StateClaim = "a" }}, "a", nil},
		"target has none":              {[]func(*template.Input){labelled("a"), moves}, "", render.ErrMissingFact},
		"named target is not there":    {[]func(*template.Input){labelled("a"), moves, named("", "c")}, "", render.ErrMissingFact},
		"target of another migration":  {[]func(*template.Input){stateOf("b", "kubevirt.io/migrationName=other"), moves}, "", render.ErrMissingFact},
		"a launcher ignores migration": {[]func(*template.Input){labelled("a"), forTarget}, "a", nil},
	} {
		t.Run(name, func(t *testing.T) {
			in := presetInput(newVMI(persistentTPM, guestCPU("Haswell")))
			for _, change := range tc.given {
				change(&in)
			}
			renderPod := preset(t).Launcher
			if in.Migration != nil {
				renderPod = preset(t).MigrationTarget
			}
			pod, err := renderPod(in)
			if tc.err != nil {
				wantError(t, err, "spec.domain.devices.tpm.persistent", tc.err)
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if got := podVolumes(pod)["vm-state"].PersistentVolumeClaim; got == nil || got.ClaimName != tc.want {
				t.Errorf("got %v, want %s", got, tc.want)
			}
		})
	}
}

// TestSpecAccessCredentials is section 6.3.
func TestSpecAccessCredentials(t *testing.T) {
	vmi := newVMI(credential("keys", ""), credential("", "passwords"), credential("keys", "keys"))
	pod := presetLauncher(t, vmi)
	var names []string
	for _, v := range pod.Spec.Volumes {
		if v.Secret != nil {
			names = append(names, v.Name+"="+v.Secret.SecretName)
		}
	}
	if want := []string{"keys-access-cred=keys", "passwords-access-cred=passwords"}; !slices.Equal(names, want) {
		t.Errorf("volumes %q, want %q: each secret once", names, want)
	}
	got := slices.DeleteFunc(mountsOf(container(t, pod, "compute")), func(m string) bool { return !strings.Contains(m, "access-cred") })
	want := []string{
		"keys-access-cred:/var/run/kubevirt-private/secret/keys-access-cred:ro",
		"passwords-access-cred:/var/run/kubevirt-private/secret/passwords-access-cred:ro",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func credential(key, password string) change {
	return func(vmi *v1.VirtualMachineInstance) {
		c := v1.AccessCredential{}
		if key != "" {
			c.SSHPublicKey = &v1.SSHPublicKeyAccessCredential{Source: v1.SSHPublicKeyAccessCredentialSource{
				Secret: &v1.AccessCredentialSecretSource{SecretName: key},
			}}
		}
		if password != "" {
			c.UserPassword = &v1.UserPasswordAccessCredential{Source: v1.UserPasswordAccessCredentialSource{
				Secret: &v1.AccessCredentialSecretSource{SecretName: password},
			}}
		}
		vmi.Spec.AccessCredentials = append(vmi.Spec.AccessCredentials, c)
	}
}

// TestSpecReservations is step 3 of the affinity in section 3.
func TestSpecReservations(t *testing.T) {
	lun := func(name string, source v1.VolumeSource, reserved bool) change {
		return func(vmi *v1.VirtualMachineInstance) {
			volume(name, source)(vmi)
			vmi.Spec.Domain.Devices.Disks = append(vmi.Spec.Domain.Devices.Disks, v1.Disk{
				Name: name, DiskDevice: v1.DiskDevice{LUN: &v1.LunTarget{Bus: v1.DiskBusSCSI, Reservation: reserved}},
			})
		}
	}
	block := func(name string) func(*template.Input) {
		return claim(name, corev1.PersistentVolumeBlock, corev1.ReadWriteMany)
	}
	late := v1.VolumeSource{DataVolume: &v1.DataVolumeSource{Name: "unknown", Hotpluggable: true}}
	vmi := newVMI(guestCPU("Haswell"),
		lun("z", pvc("z"), true), lun("a", v1.VolumeSource{DataVolume: &v1.DataVolumeSource{Name: "a"}}, true),
		lun("again", pvc("z"), true), lun("plain", pvc("plain"), false), lun("late", late, true),
		func(vmi *v1.VirtualMachineInstance) {
			vmi.Labels = map[string]string{"pr.kubevirt.io/pvc-z": "mine"}
			vmi.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{
				RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{
					TopologyKey: "zone", LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "db"}},
				}},
			}}
		})
	pod := presetLauncher(t, vmi, block("z"), block("a"), block("plain"))
	for key, want := range map[string]string{"pr.kubevirt.io/pvc-z": "", "pr.kubevirt.io/pvc-a": ""} {
		if got, ok := pod.Labels[key]; !ok || got != want {
			t.Errorf("label %s is %q, there: %v", key, got, ok)
		}
	}
	if _, ok := pod.Labels["pr.kubevirt.io/pvc-plain"]; ok {
		t.Error("a disk without reservation is marked")
	}
	var got []string
	for _, term := range pod.Spec.Affinity.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution {
		s := term.TopologyKey
		for _, e := range term.LabelSelector.MatchExpressions {
			s += " " + e.Key + " " + string(e.Operator)
		}
		got = append(got, s)
	}
	want := []string{"zone", "kubernetes.io/hostname pr.kubevirt.io/pvc-z Exists", "kubernetes.io/hostname pr.kubevirt.io/pvc-a Exists"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}

	if a := presetLauncher(t, newVMI(guestCPU("Haswell"), lun("late", late, true))).Spec.Affinity; a != nil {
		t.Errorf("an unknown claim results in %v", a)
	}
	_, err := preset(t).Launcher(presetInput(newVMI(lun("z", pvc("z"), true)), block("z"),
		changeClaim("z", func(c *corev1.PersistentVolumeClaim) { c.UID = "" })))
	wantError(t, err, "spec.domain.devices.disks[0].lun.reservation", render.ErrMissingFact)
}

// TestSpec151TemporaryPod is case 151 and section 9.4.
func TestSpec151TemporaryPod(t *testing.T) {
	vmi := newVMI(annotate("kubevirt.io/keep-launcher-alive-after-failure", ""), annotate("kubevirt.io/func-test-virt-launcher-fail-fast", ""),
		annotate("kubevirt.io/libvirt-log-filters", "3:qemu"), volume("data", pvc("c")), func(vmi *v1.VirtualMachineInstance) { vmi.Spec.Architecture = "amd64" })
	in := presetInput(vmi, claim("c", corev1.PersistentVolumeFilesystem, corev1.ReadWriteOnce), gates("CrossArchitectureVirtualization"))
	in.Config.AllowEmulation = true
	e, err := preset(t).Explain(render.TemporaryPod, in)
	if err != nil {
		t.Fatal(err)
	}
	pod, compute := e.Pod, container(t, e.Pod, "compute")
	if want := []string{"/bin/bash"}; !slices.Equal(compute.Command, want) {
		t.Errorf("command %q, want %q", compute.Command, want)
	}
	args := []string{"-c", "echo", "bound PVCs", "--allow-emulation", "--keep-after-failure", "--simulate-crash"}
	if diff := cmp.Diff(args, compute.Args); diff != "" {
		t.Error(diff)
	}
	if pod.Annotations["kubevirt.io/ephemeral-provisioning"] != "true" {
		t.Errorf("annotations %v", pod.Annotations)
	}
	if pod.Name != template.TemporaryName(vmi) || pod.Name == template.LauncherName(vmi) {
		t.Errorf("name %q", pod.Name)
	}
	for _, f := range e.Fields {
		if strings.HasPrefix(f.Path, "spec.containers[compute].args[") && f.Stage != template.StageTemporary {
			t.Errorf("%s is explained by stage %s, but is not there", f.Path, f.Stage)
		}
	}
	// All other fields equal the launcher's, so that the node of the one suits the other.
	launcher, err := preset(t).Launcher(in)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range []*corev1.Pod{pod, launcher} {
		p.Name, p.Spec.Containers[0].Command, p.Spec.Containers[0].Args = "", nil, nil
		delete(p.Annotations, "kubevirt.io/ephemeral-provisioning")
	}
	if diff := cmp.Diff(launcher, pod); diff != "" {
		t.Errorf("differs from the launcher:\n%s", diff)
	}
	if other := newVMI(func(vmi *v1.VirtualMachineInstance) { vmi.UID = "5678" }); template.TemporaryName(other) == template.TemporaryName(vmi) {
		t.Error("two guests of one name have one temporary Pod")
	}
}
