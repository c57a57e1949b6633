// SPDX-License-Identifier: Apache-2.0

package template_test

import (
	"errors"
	"maps"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/template"
	"github.com/virtloom/virtloom/template/render"
)

func named(name string) change {
	return func(vmi *v1.VirtualMachineInstance) { vmi.Name = name }
}

func hostname(name string) change {
	return func(vmi *v1.VirtualMachineInstance) { vmi.Spec.Hostname = name }
}

func vmiLabels(l map[string]string) change {
	return func(vmi *v1.VirtualMachineInstance) { vmi.Labels = l }
}

// TestSpecMetadata_BareVMI is cases 1 and 20.
func TestSpecMetadata_BareVMI(t *testing.T) {
	pod := presetLauncher(t, newVMI())
	if pod.GenerateName != "" || pod.Name != template.LauncherName(newVMI()) || !strings.HasPrefix(pod.Name, "virt-launcher-testvmi-") {
		t.Errorf("name %q, generateName %q", pod.Name, pod.GenerateName)
	}
	labels := map[string]string{
		"kubevirt.io": "virt-launcher", "kubevirt.io/created-by": "1234", "vm.kubevirt.io/name": "testvmi",
		"vmi.kubevirt.io/id": "testvmi",
	}
	if diff := cmp.Diff(labels, pod.Labels); diff != "" {
		t.Errorf("1: labels:\n%s", diff)
	}
	annotations := map[string]string{
		"kubevirt.io/domain": "testvmi", "kubectl.kubernetes.io/default-container": "compute",
		"kubevirt.io/migrationTransportUnix": "true", "descheduler.alpha.kubernetes.io/request-evict-only": "",
		"kubevirt.io/memory-overhead-bytes": "301989888",
	}
	if diff := cmp.Diff(annotations, pod.Annotations); diff != "" {
		t.Errorf("1: annotations:\n%s", diff)
	}
	yes := true
	owner := []metav1.OwnerReference{{
		APIVersion: "kubevirt.io/v1", Kind: "VirtualMachineInstance", Name: "testvmi", UID: "1234",
		Controller: &yes, BlockOwnerDeletion: &yes,
	}}
	if diff := cmp.Diff(owner, pod.OwnerReferences); diff != "" {
		t.Errorf("20: owner:\n%s", diff)
	}
	if len(pod.Finalizers) > 0 || pod.Namespace != "default" {
		t.Errorf("namespace %q, finalizers %v", pod.Namespace, pod.Finalizers)
	}
}

func TestSpecLabels(t *testing.T) {
	long := "a-very-very-long-virtual-machine-instance-name-used-for-testing-this-logic"
	dashed := strings.Repeat("a", 62) + "-b" // cut at 63, it would end with a dash
	for name, tc := range map[string]struct {
		vmi  []change
		want map[string]string
	}{
		"2: labels of the VMI":        {[]change{vmiLabels(map[string]string{"key1": "val1", "key2": ""})}, map[string]string{"key1": "val1", "key2": ""}},
		"2: ours win":                 {[]change{vmiLabels(map[string]string{"kubevirt.io": "x", "kubevirt.io/created-by": "x", "vmi.kubevirt.io/id": "x"})}, map[string]string{"kubevirt.io": "virt-launcher", "kubevirt.io/created-by": "1234", "vmi.kubevirt.io/id": "testvmi"}},
		"4: long name":                {[]change{named("testvmi-" + strings.Repeat("a", 63))}, map[string]string{"vm.kubevirt.io/name": "testvmi-" + strings.Repeat("a", 55)}},
		"4: name with a dot":          {[]change{named("guest.example.com")}, map[string]string{"vm.kubevirt.io/name": "guest", "vmi.kubevirt.io/id": "guest.example.com"}},
		"4: name cut after a dash":    {[]change{named(dashed)}, map[string]string{"vm.kubevirt.io/name": strings.Repeat("a", 62)}},
		"4: name follows hostname":    {[]change{hostname("host")}, map[string]string{"vm.kubevirt.io/name": "host", "vmi.kubevirt.io/id": "testvmi"}},
		"5: identity of a long name":  {[]change{named(long)}, map[string]string{"vmi.kubevirt.io/id": "a-very-very-long-virtual-machine-instance-name-used-fo-88ed080c"}},
		"5: identity of 63 letters":   {[]change{named(strings.Repeat("a", 63))}, map[string]string{"vmi.kubevirt.io/id": strings.Repeat("a", 63)}},
		"13: mesh injects":            {[]change{annotate("sidecar.istio.io/inject", "true")}, map[string]string{"sidecar.istio.io/inject": "true"}},
		"14: mesh does not":           {[]change{annotate("sidecar.istio.io/inject", "false")}, map[string]string{"sidecar.istio.io/inject": "false"}},
		"14: mesh, annotation wins":   {[]change{annotate("sidecar.istio.io/inject", ""), vmiLabels(map[string]string{"sidecar.istio.io/inject": "true"})}, map[string]string{"sidecar.istio.io/inject": ""}},
		"14: mesh label of the VMI":   {[]change{vmiLabels(map[string]string{"sidecar.istio.io/inject": "true"})}, map[string]string{"sidecar.istio.io/inject": "true"}},
		"the migration's label stays": {[]change{vmiLabels(map[string]string{"kubevirt.io/migrationTargetNodeName": "n1"})}, map[string]string{"kubevirt.io/migrationTargetNodeName": "n1"}},
	} {
		t.Run(name, func(t *testing.T) {
			pod := presetLauncher(t, newVMI(tc.vmi...))
			for key, want := range tc.want {
				if got, ok := pod.Labels[key]; !ok || got != want {
					t.Errorf("%s=%q (there: %v), want %q", key, got, ok, want)
				}
			}
			if pod.Spec.Hostname != pod.Labels["vm.kubevirt.io/name"] {
				t.Errorf("hostname %q differs from the label", pod.Spec.Hostname)
			}
		})
	}
}

func TestSpecAnnotations(t *testing.T) {
	for name, tc := range map[string]struct {
		vmi       []change
		key, want string
		absent    bool
	}{
		"7: kubectl's own":              {[]change{annotate("kubectl.kubernetes.io/last-applied-configuration", "open")}, "kubectl.kubernetes.io/last-applied-configuration", "", true},
		"7: the lease of the guest":     {[]change{annotate("virtloom.dev/handoff", `{"state":"Claimed"}`)}, "virtloom.dev/handoff", "", true},
		"8: latest observed version":    {[]change{annotate("kubevirt.io/latest-observed-api-version", "v1")}, "kubevirt.io/latest-observed-api-version", "", true},
		"8: stored version":             {[]change{annotate("kubevirt.io/storage-observed-api-version", "v1")}, "kubevirt.io/storage-observed-api-version", "", true},
		"9: domain is the VMI's":        {[]change{annotate("kubevirt.io/domain", "fedora")}, "kubevirt.io/domain", "fedora", false},
		"9: others are copied":          {[]change{annotate("example.com/team", "a b")}, "example.com/team", "a b", false},
		"10: default container":         {[]change{annotate("kubectl.kubernetes.io/default-container", "guest-console-log")}, "kubectl.kubernetes.io/default-container", "compute", false},
		"13: mesh annotation":           {[]change{annotate("sidecar.istio.io/inject", "true")}, "sidecar.istio.io/inject", "true", false},
		"15: overhead of a small guest": {[]change{guest("64Mi")}, "kubevirt.io/memory-overhead-bytes", "301989888", false},
		"15: overhead of a large guest": {[]change{guest("512Gi")}, "kubevirt.io/memory-overhead-bytes", "301989888", false},
		"15: overhead cannot be set":    {[]change{annotate("kubevirt.io/memory-overhead-bytes", "1")}, "kubevirt.io/memory-overhead-bytes", "301989888", false},
		"transport cannot be set":       {[]change{annotate("kubevirt.io/migrationTransportUnix", "false")}, "kubevirt.io/migrationTransportUnix", "true", false},
	} {
		t.Run(name, func(t *testing.T) {
			got, ok := presetLauncher(t, newVMI(tc.vmi...)).Annotations[tc.key]
			if ok == tc.absent || got != tc.want {
				t.Errorf("got %q (there: %v), want %q (absent: %v)", got, ok, tc.want, tc.absent)
			}
		})
	}
}

// TestSpecBackupHooks is cases 18 and 19.
func TestSpecBackupHooks(t *testing.T) {
	want := map[string]string{
		"pre.hook.backup.velero.io/container":  "compute",
		"pre.hook.backup.velero.io/command":    `["/usr/bin/virt-freezer", "--freeze", "--name", "testvmi", "--namespace", "testns"]`,
		"pre.hook.backup.velero.io/timeout":    "60s",
		"post.hook.backup.velero.io/container": "compute",
		"post.hook.backup.velero.io/command":   `["/usr/bin/virt-freezer", "--unfreeze", "--name", "testvmi", "--namespace", "testns"]`,
	}
	const skip = "kubevirt.io/skip-backup-hooks"
	cluster := func(in *template.Input) { in.Config.SkipBackupHooks = true }
	for name, tc := range map[string]struct {
		value  string // of the annotation; unset removes it
		config func(*template.Input)
		none   bool
	}{
		"18: by default": {"unset", nil, false},
		"19: true":       {"true", nil, true}, "19: True": {"True", nil, true}, "19: TRUE": {"TRUE", nil, true},
		"19: 1": {"1", nil, true}, "19: t": {"t", nil, true}, "19: T": {"T", nil, true},
		"19: false": {"false", nil, false}, "19: 0": {"0", nil, false}, "19: f": {"f", nil, false},
		"19: invalid": {"invalid", nil, false}, "19: empty": {"", nil, false},
		"19: skipped in the cluster":       {"unset", cluster, true},
		"19: the VMI wins":                 {"false", cluster, false},
		"19: an unclear VMI wins as false": {"invalid", cluster, false},
	} {
		t.Run(name, func(t *testing.T) {
			in := input(newVMI(func(vmi *v1.VirtualMachineInstance) { vmi.Namespace = "testns" }))
			if tc.value != "unset" {
				in.VMI.Annotations = map[string]string{skip: tc.value}
			}
			if tc.config != nil {
				tc.config(&in)
			}
			got := maps.Clone(launcher(t, in).Annotations)
			maps.DeleteFunc(got, func(key, _ string) bool { return !strings.Contains(key, "velero.io") })
			if tc.none && len(got) > 0 {
				t.Errorf("got %v, want none", got)
			}
			if diff := cmp.Diff(want, got); !tc.none && diff != "" {
				t.Error(diff)
			}
		})
	}
	t.Run("those of the VMI lose", func(t *testing.T) {
		in := input(newVMI(annotate("pre.hook.backup.velero.io/timeout", "1s")))
		if got := launcher(t, in).Annotations["pre.hook.backup.velero.io/timeout"]; got != "60s" {
			t.Errorf("got %q", got)
		}
	})
}

func TestSpecMeshInterfaces(t *testing.T) {
	for name, tc := range map[string]struct {
		vmi  []change
		want string
	}{
		"masquerade": {[]change{virtio}, "k6t-eth0"}, "no interface": {nil, ""},
		"bridge": {[]change{virtio, func(vmi *v1.VirtualMachineInstance) {
			vmi.Spec.Domain.Devices.Interfaces[0].InterfaceBindingMethod = v1.InterfaceBindingMethod{Bridge: &v1.InterfaceBridge{}}
		}}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			got := launcher(t, input(newVMI(tc.vmi...))).Annotations
			for _, key := range []string{"traffic.sidecar.istio.io/kubevirtInterfaces", "istio.io/reroute-virtual-interfaces"} {
				if got[key] != tc.want {
					t.Errorf("%s=%q, want %q", key, got[key], tc.want)
				}
			}
		})
	}
}

// generator returns the same annotations for every VMI.
type generator struct {
	annotations map[string]string
	err         error
}

func (g generator) Annotations(template.Input) (map[string]string, error) {
	return g.annotations, g.err
}

// TestSpecGenerators is case 141: later generators win, and the first error ends rendering.
func TestSpecGenerators(t *testing.T) {
	cause := errors.New("network is not ready")
	first := generator{annotations: map[string]string{"a": "1", "b": "1", "kubevirt.io/domain": "other"}}
	second := generator{annotations: map[string]string{"b": "2"}}
	renderPod := func(stages ...render.Stage) (*corev1.Pod, error) {
		t.Helper()
		r, err := template.Default().After(template.StageMigration, stages...)
		if err != nil {
			t.Fatal(err)
		}
		return r.MigrationTarget(targetInput(t))
	}
	for name, stages := range map[string][]render.Stage{
		"one stage":  {template.AnnotationStage("generators", first, second)},
		"two stages": {template.AnnotationStage("first", first), template.AnnotationStage("second", second)},
	} {
		t.Run("141: overlay in "+name, func(t *testing.T) {
			pod, err := renderPod(stages...)
			if err != nil {
				t.Fatal(err)
			}
			for key, want := range map[string]string{"a": "1", "b": "2", "kubevirt.io/domain": "other", "kubevirt.io/migrationJobName": "move"} {
				if pod.Annotations[key] != want {
					t.Errorf("%s=%q, want %q", key, pod.Annotations[key], want)
				}
			}
		})
	}
	t.Run("141: error", func(t *testing.T) {
		_, err := renderPod(template.AnnotationStage("generators", first, generator{err: cause}, generator{err: errors.New("later")}))
		var e *render.Error
		if !errors.Is(err, cause) || !errors.As(err, &e) || e.Stage != "generators" || strings.Contains(err.Error(), "later") {
			t.Errorf("got %v, want the first cause with its stage", err)
		}
	})
	t.Run("141: typed error", func(t *testing.T) {
		fault := &render.Error{Field: "spec.networks[0]", Reason: "not found", Remedy: "use another", Err: render.ErrMissingFact}
		_, err := renderPod(template.AnnotationStage("generators", generator{err: fault}))
		wantError(t, err, "spec.networks[0]", render.ErrMissingFact)
	})
}
