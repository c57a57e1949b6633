// SPDX-License-Identifier: Apache-2.0

package template_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/template"
	"github.com/virtloom/virtloom/template/render"
)

func TestHotplugFaults(t *testing.T) {
	type input = func(*template.Input)
	addVolume := func(name string, source v1.VolumeSource) input {
		return func(in *template.Input) {
			in.VMI.Spec.Volumes = append(in.VMI.Spec.Volumes, v1.Volume{Name: name, VolumeSource: source})
			in.Hotplug.Volumes = []string{name}
		}
	}
	for name, tc := range map[string]struct {
		kind  render.PodKind
		given input
		field string
		err   error
	}{
		"owner without node":        {render.AttachmentPod, func(in *template.Input) { in.Hotplug.Owner.Spec.NodeName = "" }, "Input.Hotplug.Owner.Spec.NodeName", render.ErrInvalid},
		"owner without UID":         {render.HotplugPods, func(in *template.Input) { in.Hotplug.Owner.UID = "" }, "Input.Hotplug.Owner with name and UID", render.ErrInvalid},
		"no owner":                  {render.HotplugPods, func(in *template.Input) { in.Hotplug.Owner = nil }, "Input.Hotplug.Owner with name and UID", render.ErrInvalid},
		"nothing to plug":           {render.HotplugPods, func(in *template.Input) { in.Hotplug = nil }, "Input.Hotplug", render.ErrInvalid},
		"owner elsewhere":           {render.HotplugPods, func(in *template.Input) { in.Hotplug.Owner.Namespace = "other" }, "Input.Hotplug.Owner.metadata.namespace", render.ErrInvalid},
		"owner of another guest":    {render.TriggerPod, func(in *template.Input) { in.Hotplug.Owner.Labels = nil }, "Input.Hotplug.Owner.metadata.labels[kubevirt.io/created-by]", render.ErrInvalid},
		"no volumes":                {render.AttachmentPod, func(in *template.Input) { in.Hotplug.Volumes = nil }, "Input.Hotplug.Volumes", render.ErrInvalid},
		"two volumes for a trigger": {render.TriggerPod, func(in *template.Input) { in.Hotplug.Volumes = []string{"v1", "v2"} }, "Input.Hotplug.Volumes with exactly one name", render.ErrInvalid},
		"unknown volume":            {render.HotplugPods, func(in *template.Input) { in.Hotplug.Volumes = []string{"nope"} }, "Input.Hotplug.Volumes[0]", render.ErrInvalid},
		"volume without claim":      {render.HotplugPods, func(in *template.Input) { in.Hotplug.Volumes = []string{"root"} }, "spec.volumes[0]", render.ErrInvalid},
		"unnamed claim":             {render.HotplugPods, addVolume("x", pvc("")), "spec.volumes[5].persistentVolumeClaim.claimName", render.ErrInvalid},
		"unnamed DataVolume":        {render.HotplugPods, addVolume("x", v1.VolumeSource{DataVolume: &v1.DataVolumeSource{}}), "spec.volumes[5].dataVolume.name", render.ErrInvalid},
		"missing claim":             {render.HotplugPods, func(in *template.Input) { delete(in.Facts.Claims, "c1") }, "spec.volumes[2].persistentVolumeClaim.claimName", render.ErrMissingFact},
		"claim without UID":         {render.HotplugPods, func(in *template.Input) { in.Facts.Claims["c1"].UID = "" }, "spec.volumes[2].persistentVolumeClaim.claimName", render.ErrMissingFact},
		"missing memory dump claim": {render.HotplugPods, func(in *template.Input) {
			delete(in.Facts.Claims, "c3")
			in.Hotplug.Volumes = []string{"v3"}
		}, "spec.volumes[4].memoryDump.claimName", render.ErrMissingFact},
		"missing utility claim": {render.HotplugPods, func(in *template.Input) {
			delete(in.Facts.Claims, "c4")
			in.Hotplug.Volumes = []string{"v4"}
		}, "spec.utilityVolumes[0].claimName", render.ErrMissingFact},
		"two volumes of one name": {render.HotplugPods, func(in *template.Input) { in.VMI.Spec.UtilityVolumes[0].Name = "v1" }, "spec.utilityVolumes[0].name", render.ErrInvalid},
		"name of the Pod's own":   {render.HotplugPods, addVolume("hotplug-disks", pvc("c1")), "spec.volumes[5].name", render.ErrInvalid},
		"name that is a path":     {render.HotplugPods, addVolume("../etc", pvc("c1")), "spec.volumes[5].name", render.ErrInvalid},
		"mount over the folder":   {render.AttachmentPod, addVolume("path", pvc("c1")), "spec.volumes[5].name", render.ErrInvalid},
		"mount over the shell":    {render.AttachmentPod, addVolume("usr", pvc("c1")), "spec.volumes[5].name", render.ErrInvalid},
		"migration without UID":   {render.AttachmentPod, func(in *template.Input) { in.Migration = &render.Migration{Name: "m"} }, "Input.Migration.UID and Name", render.ErrInvalid},
	} {
		t.Run(name, func(t *testing.T) {
			for _, kind := range []render.PodKind{render.AttachmentPod, render.TriggerPod} {
				if tc.kind&kind == 0 {
					continue
				}
				in := plugInput(t, "v1")
				tc.given(&in)
				_, err := template.Default().Render(kind, in)
				wantError(t, err, tc.field, tc.err)
			}
		})
	}
	t.Run("every fault is reported", func(t *testing.T) {
		_, err := template.Default().HotplugAttachment(plugInput(t, "nope", "v1", "nix"))
		if err == nil || !strings.Contains(err.Error(), `"nope"`) || !strings.Contains(err.Error(), `"nix"`) {
			t.Errorf("got %v, want both unknown volumes", err)
		}
	})
	t.Run("a block device hides nothing", func(t *testing.T) {
		in := plugInput(t)
		addVolume("usr", pvc("c2"))(&in)
		if diff := cmp.Diff([]string{"usr=/path/usr/pvc-c2"}, heldBy(t, attachmentPod(t, in)).Devices); diff != "" {
			t.Error(diff)
		}
	})
}

func TestAttachmentName_Set(t *testing.T) {
	nameOf := func(volumes ...string) string { return attachmentPod(t, plugInput(t, volumes...)).Name }
	same := nameOf("v1", "v2", "v4")
	for _, order := range [][]string{{"v4", "v2", "v1"}, {"v2", "v1", "v4"}, {"v1", "v4", "v2", "v1"}} {
		if got := nameOf(order...); got != same {
			t.Errorf("%v is named %q, want %q", order, got, same)
		}
	}
	claims := map[string]types.UID{"v1": "pvc-c1", "v2": "pvc-c2", "v4": "pvc-c4"}
	if got := template.AttachmentName(ownerPod(), claims); got != same {
		t.Errorf("AttachmentName is %q, the Pod's name %q", got, same)
	}
	other := ownerPod()
	other.UID = "owner-2"
	names := map[string]string{}
	for what, name := range map[string]string{
		"three volumes":            same,
		"two of them":              nameOf("v1", "v2"),
		"another two":              nameOf("v1", "v3"),
		"one":                      nameOf("v1"),
		"beside another owner":     template.AttachmentName(other, claims),
		"another claim":            template.AttachmentName(ownerPod(), map[string]types.UID{"v1": "pvc-c1", "v2": "pvc-new", "v4": "pvc-c4"}),
		"claims exchanged":         template.AttachmentName(ownerPod(), map[string]types.UID{"v1": "pvc-c2", "v2": "pvc-c1", "v4": "pvc-c4"}),
		"trigger of one":           triggerPod(t, plugInput(t, "v1")).Name,
		"trigger of another":       triggerPod(t, plugInput(t, "v2")).Name,
		"trigger, another claim":   template.TriggerName(ownerPod(), "v1", "pvc-new"),
		"trigger by another owner": template.TriggerName(other, "v1", "pvc-c1"),
	} {
		if twin, taken := names[name]; taken {
			t.Errorf("%s and %s are both named %q", what, twin, name)
		}
		names[name] = what
	}
	if got := template.TriggerName(ownerPod(), "v1", "pvc-c1"); names[got] != "trigger of one" {
		t.Errorf("TriggerName is %q, which is %q", got, names[got])
	}
}

// TestHotplugPods_NoSharedMemory renders twice and modifies the first Pod in between.
func TestHotplugPods_NoSharedMemory(t *testing.T) {
	seconds := int64(300)
	for name, kind := range map[string]render.PodKind{"attachment": render.AttachmentPod, "trigger": render.TriggerPod} {
		t.Run(name, func(t *testing.T) {
			in := plugInput(t, "v1")
			in.Hotplug.Owner = ownerPod(corev1.Toleration{Key: "a", TolerationSeconds: &seconds})
			pristine := in.Hotplug.Owner.DeepCopy()
			first, err := template.Default().Render(kind, in)
			if err != nil {
				t.Fatal(err)
			}
			want := first.DeepCopy()
			for i := range first.Spec.Tolerations {
				if s := first.Spec.Tolerations[i].TolerationSeconds; s != nil {
					*s = 1
				}
				first.Spec.Tolerations[i].Key = "changed"
			}
			first.Labels["kubevirt.io"] = "changed"
			again, err := template.Default().Render(kind, in)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, again); diff != "" {
				t.Errorf("the second Pod differs:\n%s", diff)
			}
			if diff := cmp.Diff(pristine, in.Hotplug.Owner); diff != "" {
				t.Errorf("the owner was changed:\n%s", diff)
			}
		})
	}
}

func TestHotplugPods_Explained(t *testing.T) {
	in := plugInput(t, "v1")
	in.Config.SELinuxLauncherType = "t"
	e, err := template.Default().Explain(render.AttachmentPod, in)
	if err != nil {
		t.Fatal(err)
	}
	const options = "spec.containers[hotplug-disk].securityContext.seLinuxOptions"
	for field, want := range map[string][2]string{
		"spec.volumes[v1]": {template.StageAttachment, "spec.volumes[2].persistentVolumeClaim.claimName"},
		options + ".level": {template.StageHotplugPod, "status.selinuxContext"},
		options + ".type":  {template.StageAttachment, "Config.SELinuxLauncherType"},
		"spec.tolerations": {template.StageAttachment, "Input.Hotplug.Owner"},
		"metadata.name":    {template.StageHotplugPod, "Input.Hotplug, Facts.Claims"},
	} {
		if got := originAt(t, e, field); got.Stage != want[0] || got.From != want[1] {
			t.Errorf("%s is set by %q from %q, want %v", field, got.Stage, got.From, want)
		}
	}
}
