// SPDX-License-Identifier: Apache-2.0

package template_test

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"github.com/virtloom/virtloom/template"
)

func Example() {
	pod, err := template.Default().Launcher(template.Input{
		VMI:    newVMI(guest("1Gi")),
		Config: template.Config{LauncherImage: "example.com/virt-launcher:v1"},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	memory := pod.Spec.Containers[0].Resources.Requests[corev1.ResourceMemory]
	fmt.Println(pod.Namespace, pod.Name, memory.String())
	// Output: default virt-launcher-testvmi-fcsw4lddrs 1312Mi
}

// A stage of one's own adds a container to every Pod.
func ExampleRenderer_After() {
	sidecar := template.Stage{Name: "sidecar", Apply: func(d *template.Draft) error {
		d.Container(corev1.Container{Name: "agent", Image: "example.com/agent:v1"})
		d.Annotation("example.com/agent", d.VMI().Name)
		return nil
	}}
	renderer, err := template.Default().After(template.StageCompute, sidecar)
	if err != nil {
		fmt.Println(err)
		return
	}
	pod, err := renderer.Launcher(input(newVMI()))
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(pod.Spec.Containers[0].Name, pod.Spec.Containers[1].Name)
	// Output: compute agent
}

// Two stages do not set one field, unless one says so.
func ExampleStage() {
	kata := template.Stage{Name: "kata", Apply: func(d *template.Draft) error {
		class := "kata"
		d.Set("spec.runtimeClassName", func(p *corev1.Pod) { p.Spec.RuntimeClassName = &class })
		return nil
	}}
	in := input(newVMI())
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
	// render VirtualMachineInstance default/testvmi: stage kata: spec.runtimeClassName: stage "kata" sets what stage "pod" has set (field is owned by another stage); declare the field in Stage.Overrides, or replace stage pod
	// kata
}

func ExampleRenderer_Explain() {
	e, err := template.Default().Explain(template.LauncherPod, input(newVMI(cores(4), requests("memory", "8Gi"))))
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
