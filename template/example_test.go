// SPDX-License-Identifier: Apache-2.0

package template_test

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/template"
	"github.com/virtloom/virtloom/template/render"
)

// of1Gi returns the input of a VMI with that much memory.
func of1Gi() template.Input {
	memory := resource.MustParse("1Gi")
	return template.Input{
		VMI: &v1.VirtualMachineInstance{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "testvmi", UID: "1234"},
			Spec:       v1.VirtualMachineInstanceSpec{Domain: v1.DomainSpec{Memory: &v1.Memory{Guest: &memory}}},
		},
		Config: template.Config{LauncherImage: "example.com/virt-launcher:v1"},
	}
}

func Example() {
	pod, err := template.Default().Launcher(of1Gi())
	if err != nil {
		fmt.Println(err)
		return
	}
	memory := pod.Spec.Containers[0].Resources.Requests[corev1.ResourceMemory]
	fmt.Println(pod.Namespace, pod.Name, memory.String())
	// Output: default virt-launcher-testvmi-fcsw4lddrs 1312Mi
}

// A custom stage adds a container to every Pod.
func ExampleRenderer_After() {
	sidecar := render.Stage{Name: "sidecar", Apply: func(d *render.Draft) error {
		d.AddContainer(corev1.Container{Name: "agent", Image: "example.com/agent:v1"})
		d.Annotation("example.com/agent", d.VMI().Name)
		return nil
	}}
	renderer, err := template.Default().After(template.StageCompute, sidecar)
	if err != nil {
		fmt.Println(err)
		return
	}
	pod, err := renderer.Launcher(of1Gi())
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(pod.Spec.Containers[0].Name, pod.Spec.Containers[1].Name)
	// Output: compute agent
}

// A stage must not set a field of another stage without declaring it.
func ExampleStage() {
	kata := render.Stage{Name: "kata", Apply: func(d *render.Draft) error {
		class := "kata"
		d.Set("spec.runtimeClassName", func(p *corev1.Pod) { p.Spec.RuntimeClassName = &class })
		return nil
	}}
	in := of1Gi()
	in.Config.DefaultRuntimeClass = "runc"
	for _, overrides := range [][]string{nil, {"spec.runtimeClassName"}} {
		kata.Overrides = overrides
		renderer, err := template.Default().After(template.StageStorage, kata)
		if err != nil {
			fmt.Println(err)
			return
		}
		pod, err := renderer.Launcher(in)
		if err != nil {
			fmt.Println(err)
			continue
		}
		fmt.Println(*pod.Spec.RuntimeClassName)
	}
	// Output:
	// render VirtualMachineInstance default/testvmi: stage kata: spec.runtimeClassName: stage "kata" must not set a field of stage "pod" (field is owned by another stage); declare the field in Stage.Overrides, or replace stage pod
	// kata
}

func ExampleRenderer_Explain() {
	e, err := template.Default().Explain(render.LauncherPod, of1Gi())
	if err != nil {
		fmt.Println(err)
		return
	}
	origins, err := e.At("spec.nodeSelector")
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, o := range origins {
		fmt.Println(o)
	}
	// Output:
	// spec.nodeSelector[kubevirt.io/schedulable]: stage node-selector
}
