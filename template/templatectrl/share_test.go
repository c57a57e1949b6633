// SPDX-License-Identifier: Apache-2.0

package templatectrl_test

import (
	"fmt"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/template/templatectrl"
)

// trimmed returns a copy of the Pod as a cache has it.
func trimmed(t testing.TB, p *corev1.Pod) *corev1.Pod {
	t.Helper()
	o, err := templatectrl.TrimPod(p.DeepCopy())
	if err != nil {
		t.Fatal(err)
	}
	return o.(*corev1.Pod)
}

func TestTrimPod_Conditions(t *testing.T) {
	_, p := launched(t)
	for _, c := range []corev1.PodConditionType{
		corev1.PodInitialized, corev1.ContainersReady, corev1.PodReady, corev1.PodScheduled, v1.VirtualMachineUnpaused,
	} {
		p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{Type: c, Status: corev1.ConditionTrue})
	}
	for scheduled, want := range map[corev1.ConditionStatus]string{
		corev1.ConditionTrue:  "[Ready kubevirt.io/virtual-machine-unpaused]",
		corev1.ConditionFalse: "[Ready PodScheduled kubevirt.io/virtual-machine-unpaused]",
	} {
		p.Status.Conditions[3].Status = scheduled
		var kept []corev1.PodConditionType
		for _, c := range trimmed(t, p).Status.Conditions {
			kept = append(kept, c.Type)
		}
		if fmt.Sprint(kept) != want {
			t.Errorf("scheduled %s: %v are kept, want %s", scheduled, kept, want)
		}
	}
}

// Equal parts of Pods share memory. Different ones keep their own values, however small the difference.
func TestSharedPartsOfPods(t *testing.T) {
	_, p := launched(t)
	p.Spec.Volumes = []corev1.Volume{{Name: "image", VolumeSource: corev1.VolumeSource{Image: &corev1.ImageVolumeSource{Reference: "example.test/disk:1"}}}}
	p.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{}}
	p.Spec.Containers[0].Resources.Requests = corev1.ResourceList{"cpu": resource.MustParse("1"), "memory": resource.MustParse("1Gi")}
	first := trimmed(t, p)
	second := trimmed(t, p)
	for part, shared := range map[string]bool{
		"containers":  &second.Spec.Containers[0] == &first.Spec.Containers[0],
		"volumes":     &second.Spec.Volumes[0] == &first.Spec.Volumes[0],
		"tolerations": &second.Spec.Tolerations[0] == &first.Spec.Tolerations[0],
		"affinity":    second.Spec.Affinity == first.Spec.Affinity,
	} {
		if !shared {
			t.Errorf("each Pod has its own %s", part)
		}
	}
	for name, change := range map[string]func(*corev1.Pod){
		"another image":        func(p *corev1.Pod) { p.Spec.Containers[0].Image += "1" },
		"another need":         func(p *corev1.Pod) { p.Spec.Containers[0].Resources.Requests["cpu"] = resource.MustParse("2") },
		"a need by other name": func(p *corev1.Pod) { p.Spec.Containers[0].Resources.Requests["cpus"] = resource.MustParse("1") },
		"a restart policy":     func(p *corev1.Pod) { p.Spec.Containers[0].RestartPolicy = ptr.To(corev1.ContainerRestartPolicyAlways) },
		"a port taken":         func(p *corev1.Pod) { p.Spec.Containers[0].Ports = []corev1.ContainerPort{{HostPort: 1}} },
		"a claim of devices": func(p *corev1.Pod) {
			p.Spec.Containers[0].Resources.Claims = []corev1.ResourceClaim{{Name: "gpu"}}
		},
		"a container more":    func(p *corev1.Pod) { p.Spec.Containers = append(p.Spec.Containers, corev1.Container{}) },
		"another disk":        func(p *corev1.Pod) { p.Spec.Volumes[0].Image.Reference = "example.test/disk:2" },
		"a claim beside it":   func(p *corev1.Pod) { p.Spec.Volumes = append(p.Spec.Volumes, claimVolume("data")) },
		"a time to tolerate":  func(p *corev1.Pod) { p.Spec.Tolerations[0].TolerationSeconds = ptr.To[int64](0) },
		"affinity to guests":  func(p *corev1.Pod) { p.Spec.Affinity.PodAffinity = &corev1.PodAffinity{} },
		"another node":        func(p *corev1.Pod) { p.Spec.NodeName = "node-2" },
		"no affinity":         func(p *corev1.Pod) { p.Spec.Affinity = nil },
		"another label":       func(p *corev1.Pod) { p.Labels["kubevirt.io"] = "other" },
		"what it tolerates":   func(p *corev1.Pod) { p.Spec.Tolerations[0].Key = "edges" },
		"nothing to tolerate": func(p *corev1.Pod) { p.Spec.Tolerations = nil },
	} {
		t.Run(name, func(t *testing.T) {
			other := p.DeepCopy()
			change(other)
			got := trimmed(t, other)
			if equality.Semantic.DeepEqual(got, first) {
				t.Error("different Pods are equal after trimming")
			}
			for range 2 { // its own, and what it shares by now
				if again := trimmed(t, other); !equality.Semantic.DeepEqual(again, got) {
					t.Errorf("%v, want %v", again, got)
				}
			}
			if again := trimmed(t, p); !equality.Semantic.DeepEqual(again, first) {
				t.Errorf("the first has become %v, want %v", again, first)
			}
		})
	}
}

func claimVolume(name string) corev1.Volume {
	return corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{
		PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: name},
	}}
}

// Every VMI gets its own values, however many different ones there are and however many caches share them concurrently.
func TestTrimPod_MoreValuesThanShared(t *testing.T) {
	var all sync.WaitGroup
	for w := range 4 {
		all.Go(func() {
			for i := range 3000 {
				n := int64(w*2000 + i)
				p := &corev1.Pod{}
				p.Labels = map[string]string{"guest": fmt.Sprint(n)}
				p.Spec.Tolerations = []corev1.Toleration{{TolerationSeconds: &n}}
				got, err := templatectrl.TrimPod(p)
				if err != nil {
					t.Error(err)
				}
				if p := got.(*corev1.Pod); p.Labels["guest"] != fmt.Sprint(n) || *p.Spec.Tolerations[0].TolerationSeconds != n {
					t.Errorf("%d has become %v", n, p)
				}
			}
		})
	}
	all.Wait()
}

func TestTrimVMI(t *testing.T) {
	g, _ := launched(t)
	g.Kind, g.Labels = "VirtualMachineInstance", map[string]string{"tier": "web"}
	g.Annotations = map[string]string{corev1.LastAppliedConfigAnnotation: "{}"}
	g.Finalizers = []string{v1.VirtualMachineInstanceFinalizer}
	g.OwnerReferences = []metav1.OwnerReference{{APIVersion: "kubevirt.io/v1", Kind: "VirtualMachine", Name: "web"}}
	g.Spec.Tolerations = []corev1.Toleration{{Key: "edge", Operator: corev1.TolerationOpExists}}
	g.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{}}
	g.Status.Conditions = []v1.VirtualMachineInstanceCondition{{Type: v1.VirtualMachineInstanceReady, Reason: "GuestNotRunning", Message: "why"}}
	want := g.DeepCopy()
	g.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "somebody"}}
	o, err := templatectrl.TrimVMI(g)
	if err != nil || o != any(g) || !equality.Semantic.DeepEqual(g, want) {
		t.Errorf("got %v, %v, want %v", o, err, want)
	}
	node := &corev1.Node{}
	if o, err := templatectrl.TrimVMI(node); o != any(node) || err != nil {
		t.Errorf("of a Node: %v, %v", o, err)
	}
}
