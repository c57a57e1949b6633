// SPDX-License-Identifier: Apache-2.0

package template_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/template"
	"github.com/virtloom/virtloom/template/render"
)

// TestSpecNetworkOverhead has case 96 and the passt row of the table of overheads.
func TestSpecNetworkOverhead(t *testing.T) {
	with500 := v1.InterfaceBindingPlugin{ComputeResourceOverhead: &v1.ResourceRequirementsWithoutClaims{Requests: list("memory", "500Mi", "cpu", "1")}}
	both := []func(*template.Input){registered("p", with500), registered("bare", v1.InterfaceBindingPlugin{})}
	for name, tc := range map[string]struct {
		vmi  []change
		want string
	}{
		"96: plugin on two interfaces": {[]change{podNetwork("a", boundTo("p")), secondary("b", "n", boundTo("p"))}, "500Mi"},
		"96: passt":                    {[]change{podNetwork("a", passtIface)}, "250Mi"},
		"96: passt twice":              {[]change{podNetwork("a", passtIface), secondary("b", "n", passtIface)}, "250Mi"},
		"96: plugin and passt":         {[]change{podNetwork("a", passtIface), secondary("b", "n", boundTo("p"))}, "750Mi"},
		"96: not registered":           {[]change{podNetwork("a", boundTo("x"))}, "0"},
		"plugin without overhead":      {[]change{podNetwork("a", boundTo("bare"))}, "0"},
		"other bindings":               {[]change{virtio, secondary("b", "n", sriovIface)}, "0"},
	} {
		t.Run(name, func(t *testing.T) {
			terms := template.NetworkOverhead{}.Overhead(input(newVMI(tc.vmi...), both...))
			got := render.Sum(terms)
			if got.Cmp(*quantity(tc.want)) != 0 {
				t.Errorf("got %s (%v), want %s", got.String(), terms, tc.want)
			}
		})
	}
	t.Run("96: the ratio does not scale it", func(t *testing.T) {
		in := input(newVMI(podNetwork("a", boundTo("p")), requests("memory", "1Gi")), both...)
		in.Config.AdditionalGuestMemoryOverheadRatio = "1.5"
		pod := launcher(t, in)
		// Case 94 and 500Mi.
		if got := pod.Annotations["kubevirt.io/memory-overhead-bytes"]; got != "980419040" {
			t.Errorf("overhead %s, want 980419040", got)
		}
		memory := container(t, pod, "compute").Resources.Requests[corev1.ResourceMemory]
		if memory.Value() != 1<<30+980419040 {
			t.Errorf("request %d", memory.Value())
		}
	})
}

// TestSpecNetworkResources covers resources that network attachment definitions name.
func TestSpecNetworkResources(t *testing.T) {
	nads := func(pairs ...string) func(*template.Input) {
		return func(in *template.Input) {
			in.Facts.NetworkAttachmentDefinitions = map[string]*metav1.PartialObjectMetadata{}
			for i := 0; i < len(pairs); i += 2 {
				nad := &metav1.PartialObjectMetadata{}
				if pairs[i+1] != "" {
					nad.Annotations = map[string]string{"k8s.v1.cni.cncf.io/resourceName": pairs[i+1]}
				}
				in.Facts.NetworkAttachmentDefinitions[pairs[i]] = nad
			}
		}
	}
	injected := gatesOff("ExternalNetResourceInjection")
	three := []change{defaultMultus("d", "net/d"), secondary("a", "a"), secondary("b", "b")}
	for name, tc := range map[string]struct {
		vmi  []change
		in   []func(*template.Input)
		want map[string]string
	}{
		"someone else injects them": {three, []func(*template.Input){nads("net/d", "x/sriov", "default/a", "x/sriov", "default/b", "")}, map[string]string{"x/sriov": "0"}},
		"one of each network":       {three, []func(*template.Input){injected, nads("net/d", "x/sriov", "default/a", "x/sriov", "default/b", "x/other")}, map[string]string{"x/sriov": "2", "x/other": "1"}},
		"definition without device": {three, []func(*template.Input){injected, nads("net/d", "", "default/a", "", "default/b", "")}, map[string]string{"x/sriov": "0"}},
		"one definition twice":      {[]change{secondary("a", "n"), secondary("b", "default/n")}, []func(*template.Input){injected, nads("default/n", "x/sriov")}, map[string]string{"x/sriov": "2"}},
		"beside the guest's own":    {[]change{secondary("a", "n"), gpus("x/sriov")}, []func(*template.Input){injected, nads("default/n", "x/sriov")}, map[string]string{"x/sriov": "2"}},
		"the Pod's network":         {[]change{virtio}, []func(*template.Input){injected}, map[string]string{"x/sriov": "0"}},
	} {
		t.Run(name, func(t *testing.T) {
			got := container(t, launcher(t, input(newVMI(tc.vmi...), tc.in...)), "compute").Resources
			for device, want := range tc.want {
				request, limit := got.Requests[corev1.ResourceName(device)], got.Limits[corev1.ResourceName(device)]
				if request.String() != want || limit.String() != want {
					t.Errorf("%s: request %s, limit %s; want %s", device, request.String(), limit.String(), want)
				}
			}
		})
	}
	for name, tc := range map[string]struct {
		facts func(*template.Input)
		field string
		class error
		text  string
	}{
		"unknown":        {nads("net/d", "", "default/a", ""), "spec.networks[2].multus.networkName", render.ErrMissingFact, "default/b"},
		"none known":     {func(*template.Input) {}, "spec.networks[0].multus.networkName", render.ErrMissingFact, "net/d"},
		"no resource":    {nads("net/d", "-", "default/a", "", "default/b", ""), "Facts.NetworkAttachmentDefinitions[net/d].metadata.annotations[k8s.v1.cni.cncf.io/resourceName]", render.ErrInvalid, `"-"`},
		"several faults": {nads("net/d", ""), "spec.networks[1].multus.networkName", render.ErrMissingFact, "default/b"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := template.Default().Launcher(input(newVMI(three...), injected, tc.facts))
			wantError(t, err, tc.field, tc.class)
			if !strings.Contains(err.Error(), tc.text) {
				t.Errorf("%q does not contain %s", err, tc.text)
			}
		})
	}
}

func TestSpecNetworkInfo(t *testing.T) {
	info := v1.InterfaceBindingPlugin{DownwardAPI: v1.DeviceInfo}
	for name, tc := range map[string]struct {
		vmi  []change
		in   []func(*template.Input)
		want bool
	}{
		"SR-IOV":                {[]change{secondary("a", "n", sriovIface)}, nil, true},
		"plugin asks for it":    {[]change{podNetwork("a", boundTo("p"))}, []func(*template.Input){registered("p", info)}, true},
		"plugin does not":       {[]change{podNetwork("a", boundTo("p"))}, []func(*template.Input){registered("p", v1.InterfaceBindingPlugin{})}, false},
		"unused plugin":         {[]change{virtio}, []func(*template.Input){registered("p", info)}, false},
		"multus without SR-IOV": {[]change{secondary("a", "n")}, nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			pod := launcher(t, input(newVMI(tc.vmi...), tc.in...))
			var volumes []corev1.Volume
			for _, v := range pod.Spec.Volumes {
				if v.Name == "network-info-annotation" {
					volumes = append(volumes, v)
				}
			}
			var want []corev1.Volume
			if tc.want {
				want = []corev1.Volume{{Name: "network-info-annotation", VolumeSource: corev1.VolumeSource{
					DownwardAPI: &corev1.DownwardAPIVolumeSource{Items: []corev1.DownwardAPIVolumeFile{{
						Path:     "network-info",
						FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.annotations['kubevirt.io/network-info']"},
					}}},
				}}}
			}
			if diff := cmp.Diff(want, volumes); diff != "" {
				t.Error(diff)
			}
			if got := mountPaths(container(t, pod, "compute"), "network-info-annotation"); (got == "/etc/podinfo") != tc.want {
				t.Errorf("mounted at %q", got)
			}
		})
	}
}

// mountPaths returns the mount paths of a volume in a container, joined by spaces.
func mountPaths(c corev1.Container, volume string) string {
	var paths []string
	for _, m := range c.VolumeMounts {
		if m.Name == volume {
			paths = append(paths, m.MountPath)
		}
	}
	return strings.Join(paths, " ")
}

// TestSpecNetworkClaims has the network's half of case 46.
func TestSpecNetworkClaims(t *testing.T) {
	name := "net-template"
	in := input(newVMI(attached(claimedNetwork("net-claim", "net-request"), sriovIface), func(vmi *v1.VirtualMachineInstance) {
		vmi.Spec.ResourceClaims = []v1.VirtualMachineInstanceResourceClaim{{Name: "net-claim", ResourceClaimTemplateName: &name}}
	}))
	for name, tc := range map[string]struct {
		gates []string
		want  []corev1.ResourceClaim
	}{
		"46: gate on":  {[]string{"NetworkDevicesWithDRA"}, []corev1.ResourceClaim{{Name: "net-claim", Request: "net-request"}}},
		"46: gate off": {nil, nil},
	} {
		t.Run(name, func(t *testing.T) {
			r, err := template.Default().Remove(template.StageSupported)
			if err != nil {
				t.Fatal(err)
			}
			in := in
			in.Config.FeatureGates = tc.gates
			pod, err := r.Launcher(in)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, container(t, pod, "compute").Resources.Claims); diff != "" {
				t.Error(diff)
			}
		})
	}
}
