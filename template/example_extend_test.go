// SPDX-License-Identifier: Apache-2.0

package template_test

import (
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/template"
	"github.com/virtloom/virtloom/template/render"
)

// noBridges rejects the bridge binding, which the network of a cluster does not support.
type noBridges struct{}

var _ template.NetworkSpecValidator = noBridges{}

func (noBridges) ValidateNetworks(in template.Input) error {
	var errs []error
	for i := range in.VMI.Spec.Domain.Devices.Interfaces {
		if in.VMI.Spec.Domain.Devices.Interfaces[i].Bridge != nil {
			errs = append(errs, &render.Error{
				Field: fmt.Sprintf("spec.domain.devices.interfaces[%d].bridge", i), Reason: "is not supported in this cluster",
				Remedy: "use masquerade", Err: render.ErrUnsupported,
			})
		}
	}
	return errors.Join(errs...)
}

// A second validator rejects what the nodes of a cluster cannot do.
func ExampleNetworkSpecStage() {
	renderer, err := template.Default().Replace(template.StageNetworkSpec,
		template.NetworkSpecStage(template.NetworkRules{}, noBridges{}))
	if err != nil {
		fmt.Println(err)
		return
	}
	_, err = renderer.Launcher(input(newVMI(podNetwork("red", func(i *v1.Interface) { i.Bridge = &v1.InterfaceBridge{} }))))
	fmt.Println(err)
	fmt.Println(errors.Is(err, render.ErrUnsupported))
	// Output:
	// render VirtualMachineInstance default/testvmi: stage network-spec: spec.domain.devices.interfaces[0].bridge: is not supported in this cluster (not supported); use masquerade
	// true
}

// tuners are the sidecars of VMIs with an annotation that names the ConfigMap of a script.
type tuners struct{}

var _ template.SidecarCreator = tuners{}

func (tuners) Sidecars(in template.Input) ([]render.Sidecar, error) {
	const annotation = "example.com/tuning"
	script, ok := in.VMI.Annotations[annotation]
	if !ok {
		return nil, nil
	}
	return []render.Sidecar{{
		Image: "example.com/tuner:v1", From: "metadata.annotations[" + annotation + "]",
		ConfigMap: &render.SidecarConfigMap{Name: script, Key: "tune.sh", HookPath: "/usr/bin/onDefineDomain"},
		Claim:     &render.SidecarClaim{Name: "results", VolumePath: "/results"},
	}}, nil
}

// A cluster adds sidecars of its own to those of the VMI's annotation and of network binding plugins.
func ExampleHooksStage() {
	renderer, err := template.Default().Replace(template.StageHooks,
		template.HooksStage(template.HookAnnotation{}, template.BindingPluginSidecars{}, tuners{}))
	if err != nil {
		fmt.Println(err)
		return
	}
	in := input(newVMI(annotate("example.com/tuning", "low-latency")))
	in.Facts.ConfigMaps = map[string]bool{"low-latency": true}
	pod, err := renderer.Launcher(in)
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, c := range pod.Spec.Containers[1:] {
		fmt.Println(c.Name, c.Image)
		for _, m := range c.VolumeMounts {
			fmt.Println(" ", m.MountPath, "from", m.Name)
		}
	}
	// Output:
	// hook-sidecar-0 example.com/tuner:v1
	//   /var/run/kubevirt-hooks from hook-sidecar-sockets
	//   /usr/bin/onDefineDomain from low-latency
	//   /results from results
}

// diskCache is the memory of a cache in every launcher of a cluster.
type diskCache struct{}

var _ template.OverheadCalculator = diskCache{}

func (diskCache) Overhead(template.Input) []render.Term {
	return []render.Term{{Name: "disk cache", Amount: resource.MustParse("64Mi")}}
}

// A calculator adds memory to the overhead of KubeVirt. Whoever calculates the size of a VMI otherwise, such as a quota,
// passes the same calculators.
func ExampleResourcesStage() {
	calculators := []template.OverheadCalculator{template.NetworkOverhead{}, diskCache{}}
	renderer, err := template.Default().Replace(template.StageResources, template.ResourcesStage(calculators...))
	if err != nil {
		fmt.Println(err)
		return
	}
	in := input(newVMI(guest("1Gi")))
	pod, err := renderer.Launcher(in)
	if err != nil {
		fmt.Println(err)
		return
	}
	memory := pod.Spec.Containers[0].Resources.Requests[corev1.ResourceMemory]
	fmt.Println("request:", memory.String())
	overhead := template.MemoryOverhead(in, calculators...)
	fmt.Println("overhead:", overhead.Quantity())
	fmt.Println(overhead.Terms[len(overhead.Terms)-1])
	// Output:
	// request: 1376Mi
	// overhead: 352Mi
	// 64Mi disk cache
}

// ambient is the annotation by which another mesh leaves a Pod alone.
type ambient struct{}

var _ template.AnnotationGenerator = ambient{}

func (ambient) Annotations(template.Input) (map[string]string, error) {
	return map[string]string{"linkerd.io/inject": "disabled"}, nil
}

// A cluster with another mesh adds its annotation to those for Istio.
func ExampleMeshAnnotations() {
	renderer, err := template.Default().Replace(template.StageMesh,
		template.AnnotationStage(template.StageMesh, template.MeshAnnotations{}, ambient{}))
	if err != nil {
		fmt.Println(err)
		return
	}
	pod, err := renderer.Launcher(input(newVMI(virtio)))
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(pod.Annotations["istio.io/reroute-virtual-interfaces"], pod.Annotations["linkerd.io/inject"])
	// Output:
	// k6t-eth0 disabled
}
