// SPDX-License-Identifier: Apache-2.0

package templatectrl_test

import (
	"encoding/json"
	"runtime"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/template"
	"github.com/virtloom/virtloom/template/render"
	"github.com/virtloom/virtloom/template/templatectrl"
)

// launched returns the Pod of a VMI with an image, a claim and a network, with a kubelet's status.
func launched(t testing.TB) (*v1.VirtualMachineInstance, *corev1.Pod) {
	t.Helper()
	memory := resource.MustParse("64Mi")
	g := &v1.VirtualMachineInstance{}
	g.Namespace, g.Name, g.UID = "ns", "web", "guest-uid"
	g.Spec.Domain.Memory = &v1.Memory{Guest: &memory}
	g.Spec.Domain.Devices.Disks = []v1.Disk{{Name: "image", DiskDevice: v1.DiskDevice{Disk: &v1.DiskTarget{Bus: v1.DiskBusVirtio}}}}
	g.Spec.Volumes = []v1.Volume{{Name: "image", VolumeSource: v1.VolumeSource{ContainerDisk: &v1.ContainerDiskSource{Image: "example.test/disk:1"}}}}
	in := template.Input{VMI: g, Config: template.Config{LauncherImage: "example.test/launcher:1"}}
	p, err := template.Default().Launcher(in)
	if err != nil {
		t.Fatal(err)
	}
	p.UID, p.Spec.NodeName, p.Status.Phase = "pod-uid", "node-1", corev1.PodRunning
	p.Spec.Tolerations = []corev1.Toleration{{Key: "edge", Operator: corev1.TolerationOpExists}}
	p.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "somebody"}}
	for _, c := range slices.Concat(p.Spec.InitContainers, p.Spec.Containers) {
		p.Status.ContainerStatuses = append(p.Status.ContainerStatuses, corev1.ContainerStatus{
			Name: c.Name, Image: c.Image, Ready: true, ContainerID: "runtime://" + c.Name,
			ImageID: c.Image + "@sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef",
		})
	}
	g.Status.Phase, g.Status.NodeName, g.Status.SelinuxContext = v1.Running, "node-1", "none"
	return g, p
}

// A Pod is rendered equally from a trimmed Pod and from the original.
func TestTrimPod_RendersEqually(t *testing.T) {
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "data", UID: "claim-uid"}}
	for name, renderPod := range map[string]func(template.Input, *corev1.Pod) (*corev1.Pod, error){
		"the target of a migration": func(in template.Input, p *corev1.Pod) (*corev1.Pod, error) {
			in.Migration = &render.Migration{UID: "move-uid", Name: "move", SourcePod: p}
			return template.Default().MigrationTarget(in)
		},
		"what brings a volume": func(in template.Input, p *corev1.Pod) (*corev1.Pod, error) {
			in.Facts.Claims = map[string]*corev1.PersistentVolumeClaim{"data": claim}
			in.Hotplug = &render.Hotplug{Owner: p, Volumes: []string{"data"}}
			in.VMI.Spec.Volumes = append(in.VMI.Spec.Volumes, v1.Volume{Name: "data", VolumeSource: v1.VolumeSource{
				PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{
					PersistentVolumeClaimVolumeSource: corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"}, Hotpluggable: true,
				},
			}})
			return template.Default().HotplugAttachment(in)
		},
	} {
		t.Run(name, func(t *testing.T) {
			g, full := launched(t)
			trimmed, err := templatectrl.TrimPod(full.DeepCopy())
			if err != nil {
				t.Fatal(err)
			}
			in := template.Input{VMI: g, Config: template.Config{LauncherImage: "example.test/launcher:2"}}
			a := in
			a.VMI = g.DeepCopy()
			want, err := renderPod(a, full)
			if err != nil {
				t.Fatal(err)
			}
			got, err := renderPod(in, trimmed.(*corev1.Pod))
			if err != nil {
				t.Fatal(err)
			}
			if !equality.Semantic.DeepEqual(got, want) {
				t.Errorf("from the trimmed Pod:\n%v\nfrom the whole one:\n%v", got, want)
			}
		})
	}
}

func TestTrimPod(t *testing.T) {
	_, p := launched(t)
	p.Spec.Containers[0].Ports = []corev1.ContainerPort{{ContainerPort: 80}, {ContainerPort: 81, HostPort: 8081}}
	whole := len(encoded(t, p))
	requests := p.Spec.Containers[0].Resources.DeepCopy()
	o, err := templatectrl.TrimPod(p)
	if err != nil || o != any(p) {
		t.Fatalf("got %v, %v", o, err)
	}
	c := p.Spec.Containers[0]
	switch {
	case len(p.ManagedFields) > 0, len(c.Command)+len(c.Args)+len(c.Env)+len(c.VolumeMounts) > 0, c.SecurityContext != nil:
		t.Errorf("an unused field is left: %+v", p)
	case len(c.Ports) != 1 || c.Ports[0].HostPort != 8081, !equality.Semantic.DeepEqual(c.Resources.Requests, requests.Requests), c.Image == "":
		t.Errorf("a field that determines the placement is missing: %+v", c)
	case p.Status.ContainerStatuses[0].ImageID == "", len(p.OwnerReferences) != 1, len(p.Spec.Tolerations) == 0:
		t.Errorf("a field from which other Pods are rendered is missing: %+v", p)
	}
	if trimmed := len(encoded(t, p)); 3*trimmed > 2*whole {
		t.Errorf("%d bytes of %d are left", trimmed, whole)
	}
	node := &corev1.Node{}
	if o, err := templatectrl.TrimPod(node); o != any(node) || err != nil {
		t.Errorf("of a Node: %v, %v", o, err)
	}
}

func encoded(t *testing.T, o any) []byte {
	t.Helper()
	b, err := json.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// BenchmarkTrimmedPod reports the memory of a decoded and trimmed Pod, as bytes/pod.
func BenchmarkTrimmedPod(b *testing.B) {
	_, p := launched(b)
	text, err := p.Marshal()
	if err != nil {
		b.Fatal(err)
	}
	for name, trim := range map[string]func(any) (any, error){
		"whole": func(o any) (any, error) { return o, nil }, "trimmed": templatectrl.TrimPod,
	} {
		b.Run(name, func(b *testing.B) {
			var before, after runtime.MemStats
			kept := make([]any, b.N)
			runtime.GC()
			runtime.ReadMemStats(&before)
			for i := range b.N {
				pod := &corev1.Pod{}
				if err := pod.Unmarshal(text); err != nil {
					b.Fatal(err)
				}
				kept[i], _ = trim(pod)
			}
			runtime.GC()
			runtime.ReadMemStats(&after)
			b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/float64(b.N), "bytes/pod")
			runtime.KeepAlive(kept)
		})
	}
}
