// SPDX-License-Identifier: Apache-2.0

package admit_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/template"
	"github.com/virtloom/virtloom/template/offline"
	"github.com/virtloom/virtloom/template/render"
	"github.com/virtloom/virtloom/vmi/admit"
	"github.com/virtloom/virtloom/vmi/validate"
)

// sample is a VMI of template's corpus, with the other objects of its file.
type sample struct {
	name    string
	cluster *offline.Cluster
}

// corpus returns all VMIs of template's corpus.
func corpus(t testing.TB) (all []sample) {
	t.Helper()
	files, err := filepath.Glob("../../template/testdata/corpus/*.yaml")
	if err != nil || len(files) < 60 {
		t.Fatalf("%d files, %v", len(files), err)
	}
	for _, file := range files {
		if cluster := read(t, file); cluster.VMI != nil {
			cluster.LauncherImage = "quay.io/kubevirt/virt-launcher:v1.9.0"
			all = append(all, sample{strings.TrimSuffix(filepath.Base(file), ".yaml"), cluster})
		}
	}
	return all
}

func read(t testing.TB, file string) *offline.Cluster {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	objects, err := offline.Read(file, f)
	if err != nil {
		t.Fatal(err)
	}
	cluster, err := offline.NewCluster(objects...)
	if err != nil {
		t.Fatal(err)
	}
	return cluster
}

func TestValidate_Examples(t *testing.T) {
	files, err := filepath.Glob("../../examples/*/guest.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("%d files, %v", len(files), err)
	}
	for _, file := range files {
		cluster := read(t, file)
		if err := cluster.Start(true); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		c := admit.ConfigFrom(cluster.KubeVirt)
		c.Request.Privileged = cluster.VM != nil // the VMI of a VM is made by the control plane
		admit.Default(cluster.VMI, c)
		if errs := admit.Validate(cluster.VMI, c); len(errs) > 0 {
			t.Errorf("%s: %v", file, errs)
		}
	}
}

func (s sample) config() admit.Config {
	c := admit.ConfigFrom(s.cluster.KubeVirt)
	c.Request.Now = metav1.Unix(1, 0)
	return c
}

// inTheCluster are VMIs with the status of a running VMI, which only the control plane writes.
var inTheCluster = []string{
	"changed-blocks", "cpu-model", "hotplug", "hotplug-migration", "memory-dump", "migration", "migration-copies",
	"migration-ordinal", "migration-state", "utility-volumes", "windows",
}

// refused are VMIs that can be rendered but not converted, or that KubeVirt rejects.
var refused = map[string]string{
	"arm64":      "spec.domain.firmware.bootloader.efi.secureBoot", // its firmware has no secure boot
	"bare":       "spec.domain.memory.guest",                       // no memory at all
	"masquerade": "spec.domain.devices.interfaces[0].portRanges",   // with ports, which the API excludes
	"sev":        "spec.startStrategy",                             // it could not be attested before it runs
}

func TestValidate_Corpus(t *testing.T) {
	for _, s := range corpus(t) {
		t.Run(s.name, func(t *testing.T) {
			c := s.config()
			for _, gate := range validate.Needed(s.cluster.VMI) {
				closed := c
				closed.FeatureGates = slices.DeleteFunc(slices.Clone(c.FeatureGates), func(on string) bool { return on == gate })
				closed.DisabledFeatureGates = []string{gate}
				if len(admit.Validate(s.cluster.VMI, closed)) == 0 {
					t.Errorf("is accepted without %s", gate)
				}
			}
			if slices.Contains(inTheCluster, s.name) {
				if len(admit.Validate(s.cluster.VMI, c)) == 0 {
					t.Error("is accepted as a new guest")
				}
				c.Request.Privileged = true
			}
			vmi := s.cluster.VMI.DeepCopy()
			admit.Default(vmi, c)
			var fields []string
			for _, err := range admit.Validate(vmi, c) {
				t.Log(err)
				fields = append(fields, err.Field)
			}
			if got := strings.Join(fields, " "); got != refused[s.name] {
				t.Errorf("refused: %q, want %q", got, refused[s.name])
			}
		})
	}
}

// completed are VMIs for which the webhooks set defaults that the offline tools do not, since they are rare: features of
// Hyper-V on which those of the VMI depend.
var completed = []string{"hyperv-strict"}

// TestDefault_CorpusRendersAsOffline compares Pods: the other defaults change none.
func TestDefault_CorpusRendersAsOffline(t *testing.T) {
	for _, s := range corpus(t) {
		t.Run(s.name, func(t *testing.T) {
			asOf := func(change func(*v1.VirtualMachineInstance) *v1.VirtualMachineInstance) *corev1.Pod {
				cluster := *s.cluster
				cluster.VMI = s.cluster.VMI.DeepCopy()
				cluster.VMI.Status.Phase = ""
				cluster.VMI = change(cluster.VMI)
				in, err := cluster.Input(render.LauncherPod)
				if err != nil {
					t.Fatal(err)
				}
				in.Config.SidecarShimImage = "quay.io/kubevirt/sidecar-shim:v1.9.0"
				pod, err := template.Default().Render(render.LauncherPod, in)
				if err != nil {
					t.Fatal(err)
				}
				return pod
			}
			want := asOf(func(vmi *v1.VirtualMachineInstance) *v1.VirtualMachineInstance {
				vmi, err := offline.Default(vmi, s.cluster.KubeVirt)
				if err != nil {
					t.Fatal(err)
				}
				return vmi
			})
			got := asOf(func(vmi *v1.VirtualMachineInstance) *v1.VirtualMachineInstance {
				admit.Default(vmi, s.config())
				return vmi
			})
			diff := cmp.Diff(want, got)
			switch more := slices.Contains(completed, s.name); {
			case diff != "" && !more:
				t.Errorf("-want +got\n%s", diff)
			case diff == "" && more:
				t.Error("the Pods are equal; remove the VMI from completed")
			}
		})
	}
}
