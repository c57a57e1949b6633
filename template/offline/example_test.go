// SPDX-License-Identifier: Apache-2.0

package offline_test

import (
	"fmt"
	"strings"

	"github.com/virtloom/virtloom/template"
	"github.com/virtloom/virtloom/template/offline"
	"github.com/virtloom/virtloom/template/render"
)

// manifests are those of a VMI and of the claim of its disk.
const manifests = `apiVersion: kubevirt.io/v1
kind: VirtualMachineInstance
metadata: {name: web, namespace: default}
spec:
  domain:
    cpu: {cores: 4}
    memory: {guest: 8Gi}
    devices:
      disks: [{name: root, disk: {bus: virtio}}]
  volumes: [{name: root, persistentVolumeClaim: {claimName: web}}]
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: web, namespace: default}
spec:
  accessModes: [ReadWriteMany]
  volumeMode: Block
  resources: {requests: {storage: 20Gi}}
---
apiVersion: kubevirt.io/v1
kind: KubeVirt
metadata: {name: kubevirt, namespace: kubevirt}
spec: {imageRegistry: quay.io/kubevirt, imageTag: v1.9.0}
`

// A launcher Pod from manifests.
func Example() {
	objects, err := offline.Read("web.yaml", strings.NewReader(manifests))
	if err != nil {
		fmt.Println(err)
		return
	}
	cluster, err := offline.NewCluster(objects...)
	if err != nil {
		fmt.Println(err)
		return
	}
	// Set the defaults of KubeVirt's webhooks.
	if cluster.VMI, err = offline.Default(cluster.VMI, cluster.KubeVirt); err != nil {
		fmt.Println(err)
		return
	}
	in, err := cluster.Input(render.LauncherPod)
	if err != nil {
		fmt.Println(err)
		return
	}
	pod, err := template.Default().Launcher(in)
	if err != nil {
		fmt.Println(err)
		return
	}
	compute := pod.Spec.Containers[0]
	fmt.Println(pod.Spec.NodeSelector["kubernetes.io/arch"], compute.Resources.Requests.Memory(), compute.VolumeDevices[0].DevicePath)
	// Output: amd64 8504Mi /dev/root
}

// Faults have file, document, object, field and remedy.
func ExampleRead() {
	_, err := offline.Read("wrong.yaml", strings.NewReader(`# Three faults.
apiVersion: kubevirt.io/v1
kind: VirtualMachineInstance
metadata: {name: web, namespace: default}
spec:
  domain:
    cpu: {cores: two}
    devices: {}
  volumes:
    - name: a
      emptyDisk: {capacity: 1Gi}
    - name: b
      containerdisk: {image: "quay.io/containerdisks/debian:12"}
---
apiVersion: apps/v1beta1
kind: ControllerRevision
metadata: {name: web, namespace: default}
`))
	fmt.Println(err)
	// Output:
	// wrong.yaml: document 1 (line 2): VirtualMachineInstance default/web: spec.domain.cpu.cores: "two" must be a non-negative whole number of 32 bits; correct the value
	// wrong.yaml: document 1 (line 2): VirtualMachineInstance default/web: spec.volumes[1].containerdisk: is not a field of VirtualMachineInstance; correct its name (case-sensitive) or its position, or remove it
	// wrong.yaml: document 2 (line 15): ControllerRevision default/web: apiVersion: apps/v1beta1 is not supported; use apps/v1
}

// machine is a VirtualMachine with an instance type.
const machine = `apiVersion: kubevirt.io/v1
kind: VirtualMachine
metadata: {name: web}
spec:
  runStrategy: Always
  instancetype: {name: small, kind: VirtualMachineInstancetype}
  template: {spec: {domain: {devices: {}}}}
---
apiVersion: instancetype.kubevirt.io/v1beta1
kind: VirtualMachineInstancetype
metadata: {name: small}
spec: {cpu: {guest: 1}, memory: {guest: 2Gi}}
`

// The VMI of a VirtualMachine, and where its values come from.
func ExampleCluster_Start() {
	objects, err := offline.Read("machine.yaml", strings.NewReader(machine))
	if err != nil {
		fmt.Println(err)
		return
	}
	cluster, err := offline.NewCluster(objects...)
	if err != nil {
		fmt.Println(err)
		return
	}
	if err := cluster.Start(false); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(cluster.VMI.Spec.Domain.Memory.Guest, "from", cluster.From("spec.domain.memory.guest"))
	// Output: 2Gi from instance type VirtualMachineInstancetype default/small
}
