// SPDX-License-Identifier: Apache-2.0

package template_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/template"
	"github.com/virtloom/virtloom/template/render"
)

func TestMigrationTarget_ImageDigests(t *testing.T) {
	status := func(id string) func(*template.Input) {
		return func(in *template.Input) {
			in.Migration.SourcePod.Status.InitContainerStatuses = []corev1.ContainerStatus{{Name: "volumeroot", ImageID: id}}
		}
	}
	sourceVolume := func(reference string) func(*template.Input) {
		return func(in *template.Input) {
			in.Migration.SourcePod.Spec.Volumes = []corev1.Volume{{Name: "root", VolumeSource: corev1.VolumeSource{
				Image: &corev1.ImageVolumeSource{Reference: reference},
			}}}
		}
	}
	unreported := func(in *template.Input) { in.Migration.SourcePod.Status = corev1.PodStatus{} }
	spec := func(image string) func(*template.Input) {
		return func(in *template.Input) { in.VMI.Spec.Volumes[0].ContainerDisk.Image = image }
	}
	skip := func(in *template.Input) { annotate("kubevirt.io/image-volume-skip-digest-resolution", "true")(in.VMI) }
	for name, tc := range map[string]struct {
		given []func(*template.Input)
		want  string
		err   error
	}{
		"S14/98, 135 reported digest":    {[]func(*template.Input){status("docker://sha256:abcd1234567890")}, "img@sha256:abcd1234567890", nil},
		"reported with repository":       {[]func(*template.Input){status("docker.io/x/img@sha256:ff00")}, "img@sha256:ff00", nil},
		"136 pinned by the source":       {[]func(*template.Input){unreported, sourceVolume("img@sha256:aa")}, "img@sha256:aa", nil},
		"138 port and tag":               {[]func(*template.Input){spec("registry:5000/x:tag"), status("sha256:aa")}, "registry:5000/x@sha256:aa", nil},
		"named by digest":                {[]func(*template.Input){unreported, spec("img@sha256:bb")}, "img@sha256:bb", nil},
		"resolution is declined":         {[]func(*template.Input){unreported, skip}, "img:v1", nil},
		"S14/98, 137 no digest reported": {[]func(*template.Input){status("rubbish")}, "", render.ErrInvalid},
		"nothing reported yet":           {[]func(*template.Input){unreported}, "", render.ErrMissingFact},
		"container without image id":     {[]func(*template.Input){status("")}, "", render.ErrMissingFact},
	} {
		t.Run(name, func(t *testing.T) {
			in := targetInput(t)
			for _, change := range tc.given {
				change(&in)
			}
			pod, err := template.Default().MigrationTarget(in)
			if tc.err != nil {
				wantError(t, err, "spec.volumes[0].containerDisk.image", tc.err)
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			for _, v := range pod.Spec.Volumes {
				if v.Name == "root" && v.Image.Reference != tc.want {
					t.Errorf("got image %q, want %q", v.Image.Reference, tc.want)
				}
			}
			if len(pod.Spec.InitContainers) != 1 {
				t.Errorf("%d init containers, want the console log alone", len(pod.Spec.InitContainers))
			}
		})
	}
}

func TestMigrationTarget_SourceCPU(t *testing.T) {
	const model = "cpu-model-migration.node.kubevirt.io/"
	t.Run("S14/94 model of an earlier migration is kept", func(t *testing.T) {
		in := targetInput(t)
		in.Migration.SourcePod.Spec.NodeSelector = map[string]string{model + "Haswell": "true", "zone": "a"}
		pod, err := template.Default().MigrationTarget(in)
		if err != nil {
			t.Fatal(err)
		}
		s := pod.Spec.NodeSelector
		if s[model+"Haswell"] != "true" || s[model+"Skylake"] != "" || s["zone"] != "" {
			t.Errorf("got selectors %v", s)
		}
	})
	t.Run("S14/94 model of the node at first", func(t *testing.T) {
		pod, err := template.Default().MigrationTarget(targetInput(t))
		if err != nil {
			t.Fatal(err)
		}
		s := pod.Spec.NodeSelector
		if s[model+"Skylake"] != "true" || s["cpu-feature.node.kubevirt.io/x"] != "true" || s["cpu-vendor.node.kubevirt.io/Intel"] != "true" {
			t.Errorf("got selectors %v", s)
		}
	})
	t.Run("node without model", func(t *testing.T) {
		in := targetInput(t)
		in.Migration.SourceNode.Labels = nil
		_, err := template.Default().MigrationTarget(in)
		wantError(t, err, "spec.domain.cpu.model", render.ErrMissingFact)
	})
	t.Run("named model needs no node", func(t *testing.T) {
		in := targetInput(t)
		in.Migration.SourceNode = nil
		in.VMI.Spec.Domain.CPU.Model = "Haswell"
		if _, err := template.Default().MigrationTarget(in); err != nil {
			t.Error(err)
		}
	})
}

func TestMigrationTarget_AddedNodeSelector(t *testing.T) {
	in := targetInput(t)
	in.VMI.Spec.NodeSelector = map[string]string{"region": "east"}
	in.Migration.AddedNodeSelector = map[string]string{"region": "west", "rack": "2"}
	pod, err := template.Default().MigrationTarget(in)
	if err != nil {
		t.Fatal(err)
	}
	if s := pod.Spec.NodeSelector; s["region"] != "east" || s["rack"] != "2" || len(in.VMI.Spec.NodeSelector) != 1 {
		t.Errorf("selectors are %v, those of the guest %v", s, in.VMI.Spec.NodeSelector)
	}
}

func TestMigrationTarget_SELinuxLevel(t *testing.T) {
	for name, tc := range map[string]struct {
		context string
		ignore  bool
		level   string
		err     error
	}{
		"S14/95 level with categories": {"system_u:object_r:container_file_t:s0:c1,c2", false, "s0:c1,c2", nil},
		"S14/95 no SELinux":            {"none", false, "", nil},
		"S14/95 unknown":               {"", false, "", render.ErrMissingFact},
		"S14/95 unknown but ignored":   {"", true, "", nil},
		"malformed":                    {"a:b", false, "", render.ErrInvalid},
	} {
		t.Run(name, func(t *testing.T) {
			in := targetInput(t)
			in.VMI.Status.SelinuxContext, in.Config.IgnoreSELinuxLevel = tc.context, tc.ignore
			pod, err := template.Default().MigrationTarget(in)
			if tc.err != nil {
				wantError(t, err, "status.selinuxContext", tc.err)
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if got := pod.Spec.SecurityContext.SELinuxOptions; got.Level != tc.level || got.Type != "virt_launcher.process" {
				t.Errorf("got %v, want level %q beside the configured type", got, tc.level)
			}
		})
	}
}

func TestMigrationTarget_RuntimeUser(t *testing.T) {
	in := targetInput(t)
	in.VMI.Status.RuntimeUser = 0
	pod, err := template.Default().MigrationTarget(in)
	if err != nil {
		t.Fatal(err)
	}
	if got := *pod.Spec.SecurityContext.RunAsUser; got != 107 {
		t.Errorf("runs as %d, want 107", got)
	}
	in.Config.FeatureGates = []string{"Root"}
	in.VMI.Status.RuntimeUser = 107
	if pod, err = template.Default().MigrationTarget(in); err != nil {
		t.Fatal(err)
	}
	if got := *pod.Spec.SecurityContext.RunAsUser; got != 0 {
		t.Errorf("runs as %d with gate Root, want 0", got)
	}
}

func TestMigrationTarget_AntiAffinity(t *testing.T) {
	in := targetInput(t)
	in.VMI.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{
		RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{TopologyKey: "zone"}},
	}}
	pod, err := template.Default().MigrationTarget(in)
	if err != nil {
		t.Fatal(err)
	}
	terms := pod.Spec.Affinity.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution
	if len(terms) != 2 || terms[0].TopologyKey != "zone" || terms[1].LabelSelector.MatchLabels[v1.CreatedByLabel] != "1234" {
		t.Errorf("got terms %v", terms)
	}
}

// decentralized changes the VMI to one that is received from another cluster.
func decentralized(vmi *v1.VirtualMachineInstance) {
	address := "10.0.0.1:9185"
	state := &v1.VirtualMachineInstanceMigrationState{
		SourceState: &v1.VirtualMachineInstanceMigrationSourceState{},
		TargetState: &v1.VirtualMachineInstanceMigrationTargetState{},
	}
	state.TargetState.SyncAddress = &address
	state.SourceState.Node = "far"
	state.SourceState.SelinuxContext = "system_u:object_r:container_file_t:s0:c7,c8"
	state.SourceState.NodeSelectors = map[string]string{
		"host-model-cpu.node.kubevirt.io/Cascadelake":     "true",
		"host-model-required-features.node.kubevirt.io/y": "true",
		"cpu-vendor.node.kubevirt.io/AMD":                 "true",
	}
	vmi.Status.SelinuxContext = ""
	vmi.Status.MigrationState = state
	vmi.Spec.Volumes[0].ContainerDisk.Image = "img@sha256:" + strings.Repeat("0", 64)
}

func TestMigrationTarget_Receives(t *testing.T) {
	in := targetInput(t)
	decentralized(in.VMI)
	in.Migration.SourceNode, in.Migration.SourcePod, in.Migration.Receives = nil, nil, true
	in.VMI.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
		RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{
			{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "zone", Operator: corev1.NodeSelectorOpExists}}},
			{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "rack", Operator: corev1.NodeSelectorOpExists}}},
		}},
	}}
	pod, err := template.Default().MigrationTarget(in)
	if err != nil {
		t.Fatal(err)
	}
	if pod.Spec.Affinity.PodAntiAffinity != nil {
		t.Errorf("got Pod anti-affinity %v, but the source's Pod belongs to another VMI", pod.Spec.Affinity.PodAntiAffinity)
	}
	avoid := corev1.NodeSelectorRequirement{Key: "kubernetes.io/hostname", Operator: corev1.NodeSelectorOpNotIn, Values: []string{"far"}}
	for i, term := range pod.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms {
		if last := term.MatchExpressions[len(term.MatchExpressions)-1]; !cmp.Equal(last, avoid) {
			t.Errorf("term %d ends with %v, want the source's node kept out", i, last)
		}
	}
	if got := pod.Spec.SecurityContext.SELinuxOptions.Level; got != "s0:c7,c8" {
		t.Errorf("got level %q, want that of the sending side", got)
	}
	for _, label := range []string{
		"cpu-model-migration.node.kubevirt.io/Cascadelake", "cpu-feature.node.kubevirt.io/y", "cpu-vendor.node.kubevirt.io/AMD",
	} {
		if pod.Spec.NodeSelector[label] != "true" {
			t.Errorf("nodes need not have %s: %v", label, pod.Spec.NodeSelector)
		}
	}
	if pod.Labels["kubevirt.io/migrationJobUID"] != "m-1" || pod.Annotations["kubevirt.io/migrationJobName"] != "move" {
		t.Errorf("the migration is not marked: %v %v", pod.Labels, pod.Annotations)
	}
}

func TestMigrationTarget_MissingSourceState(t *testing.T) {
	const state = "status.migrationState.sourceState."
	for name, tc := range map[string]struct {
		given func(*v1.VirtualMachineInstanceMigrationSourceState)
		field string
		err   error
		image string
	}{
		"digest of its image":  {func(*v1.VirtualMachineInstanceMigrationSourceState) {}, "spec.volumes[0].containerDisk.image", render.ErrInvalid, "img:v1"},
		"node":                 {func(s *v1.VirtualMachineInstanceMigrationSourceState) { s.Node = "" }, state + "node", render.ErrMissingFact, ""},
		"SELinux context":      {func(s *v1.VirtualMachineInstanceMigrationSourceState) { s.SelinuxContext = "" }, state + "selinuxContext", render.ErrMissingFact, ""},
		"real SELinux context": {func(s *v1.VirtualMachineInstanceMigrationSourceState) { s.SelinuxContext = "a:b" }, state + "selinuxContext", render.ErrInvalid, ""},
		"CPU model":            {func(s *v1.VirtualMachineInstanceMigrationSourceState) { s.NodeSelectors = nil }, "spec.domain.cpu.model", render.ErrMissingFact, ""},
	} {
		t.Run(name, func(t *testing.T) {
			in := targetInput(t)
			decentralized(in.VMI)
			in.Migration.Receives = true
			if tc.image != "" {
				in.VMI.Spec.Volumes[0].ContainerDisk.Image = tc.image
			}
			tc.given(in.VMI.Status.MigrationState.SourceState)
			_, err := template.Default().MigrationTarget(in)
			wantError(t, err, tc.field, tc.err)
		})
	}
}

func TestMigrationTarget_ReceivedBefore(t *testing.T) {
	in := targetInput(t)
	decentralized(in.VMI)
	in.VMI.Status.SelinuxContext = "none"
	pod, err := template.Default().MigrationTarget(in)
	if err != nil {
		t.Fatal(err)
	}
	if a := pod.Spec.Affinity; a == nil || a.PodAntiAffinity == nil {
		t.Errorf("got affinity %v, want the target kept off the node of the guest's own Pod", a)
	}
	if pod.Spec.NodeSelector["cpu-model-migration.node.kubevirt.io/Cascadelake"] != "" {
		t.Errorf("the CPU is that of the node it once came from: %v", pod.Spec.NodeSelector)
	}
}
