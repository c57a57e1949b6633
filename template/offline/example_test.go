// SPDX-License-Identifier: Apache-2.0

package offline_test

import (
	"fmt"
	"os"

	"github.com/virtloom/virtloom/template"
	"github.com/virtloom/virtloom/template/offline"
)

// A launcher Pod from the manifests that lie in a folder.
func Example() {
	var objects []offline.Object
	for _, name := range []string{"guest.yaml", "claim.yaml", "kubevirt.yaml"} {
		f, err := os.Open("../../examples/render/" + name)
		if err != nil {
			fmt.Println(err)
			return
		}
		more, err := offline.Read(name, f)
		f.Close()
		if err != nil {
			fmt.Println(err)
			return
		}
		objects = append(objects, more...)
	}
	cluster, err := offline.New(objects...)
	if err != nil {
		fmt.Println(err)
		return
	}
	// What KubeVirt's webhooks would do.
	if cluster.VMI, err = offline.Default(cluster.VMI, cluster.KubeVirt); err != nil {
		fmt.Println(err)
		return
	}
	in, err := cluster.Input(template.LauncherPod)
	if err != nil {
		fmt.Println(err)
		return
	}
	pod, err := template.Default().Launcher(in)
	if err != nil {
		fmt.Println(err)
		return
	}
	requests := pod.Spec.Containers[0].Resources.Requests
	fmt.Println(pod.Name, pod.Spec.NodeSelector["kubernetes.io/arch"], requests.Cpu(), requests.Memory())
	// Output: virt-launcher-web-7ggmepwd4m amd64 500m 8504Mi
}

// Faults name file, document, object, field and remedy.
func ExampleRead() {
	f, err := os.Open("testdata/wrong.yaml")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer f.Close()
	_, err = offline.Read("wrong.yaml", f)
	fmt.Println(err)
	// Output:
	// wrong.yaml: document 1 (line 2): VirtualMachineInstance default/web: spec.domain.cpu.cores: "two" is not a whole number of 32 bits that is not negative; correct the value
	// wrong.yaml: document 1 (line 2): VirtualMachineInstance default/web: spec.volumes[1].containerdisk: is no field of VirtualMachineInstance; correct its name, upper and lower case included, or its place, or remove it
	// wrong.yaml: document 2 (line 18): VirtualMachine default/web: kind: a VirtualMachine is not rendered itself; give its VirtualMachineInstance: kubectl get vmi NAME -o yaml, or spec.template as a manifest of its own
}
