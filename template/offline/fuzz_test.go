// SPDX-License-Identifier: Apache-2.0

package offline_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/virtloom/virtloom/template"
	"github.com/virtloom/virtloom/template/offline"
	"github.com/virtloom/virtloom/template/render"
)

// hostile are VMs, and what they refer to, that no user would write in good faith.
var hostile = []string{
	"{apiVersion: kubevirt.io/v1, kind: VirtualMachine, metadata: {name: vm}, spec: null}",
	"{apiVersion: kubevirt.io/v1, kind: VirtualMachine, metadata: {name: vm}, spec: {template: null, dataVolumeTemplates: [{}, {}]}}",
	"{apiVersion: kubevirt.io/v1, kind: VirtualMachine, metadata: {name: vm}, spec: {template: {}, instancetype: {}, preference: {}}}",
	"{apiVersion: kubevirt.io/v1, kind: VirtualMachine, metadata: {name: vm}, status: {instancetypeRef: {}, memoryDumpRequest: {}, stateChangeRequests: [{}]}, spec: {runStrategy: Always, template: {spec: {volumes: [{}, {name: ''}], networks: [{}], domain: {devices: {disks: [{}], interfaces: [{}]}}}}}}",
	strings.Replace(typedVM, "emptyDisk: {capacity: 1Gi}", "dataVolume: {}", 1) + strings.Replace(instanceType, "cpu: {guest: 4}, memory: {guest: 3Gi}", "cpu: {guest: 0}, memory: {guest: -1, overcommitPercent: 100}", 1) + preference,
	typedVM + strings.Replace(instanceType, "cpu: {guest: 4}", "cpu: {guest: 4294967295, maxSockets: 1}", 1) + strings.Replace(preference, "cpu: {preferredCPUTopology: threads}", "cpu: {preferredCPUTopology: spread, spreadOptions: {across: SocketsCoresThreads, ratio: 4294967295}}", 1),
	typedVM + strings.Replace(instanceType, "guest: 3Gi", "guest: 8Ei, maxGuest: 1", 1) + strings.Replace(preference, "threads", "nonsense", 1),
	withType("name: it, revisionName: rev", "", "") + strings.Replace(revision, "spec: {cpu: {guest: 2}, memory: {guest: 7Gi}}", "spec: '%%%'", 1),
	withType("name: it, revisionName: rev", "", "") + "---\n{apiVersion: apps/v1, kind: ControllerRevision, metadata: {name: rev}, revision: 1}",
	inferring("dataVolume: {name: c}", "") + "---\n{apiVersion: cdi.kubevirt.io/v1beta1, kind: DataVolume, metadata: {name: c}, spec: {sourceRef: {kind: DataSource, name: c}}}\n" +
		"---\n{apiVersion: cdi.kubevirt.io/v1beta1, kind: DataSource, metadata: {name: c}, spec: {source: {dataSource: {name: c, namespace: default}}}}",
}

// FuzzStart: whatever the manifests of a VM are, they are rejected with a fault, or make a VMI that is rendered or rejected.
func FuzzStart(f *testing.F) {
	for _, text := range append(hostile, typedVM+instanceType+preference, withType("kind: VirtualMachineInstancetype, name: it", "", stored)+revision) {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		objects, err := offline.Read("fuzz.yaml", strings.NewReader(text))
		if err != nil {
			return
		}
		c, err := offline.NewCluster(objects...)
		if err != nil || c.VM == nil {
			return
		}
		if err := c.Start(len(text)%2 == 0); err != nil {
			var fault *offline.Error
			if !errors.As(err, &fault) || fault.Object == "" || fault.Remedy == "" {
				t.Errorf("error %#v, want an *Error with object and remedy", err)
			}
			return
		}
		for _, path := range []string{"spec", "spec.volumes[0]", "metadata.annotations[x]", "[[", "spec.domain.devices.disks[].name"} {
			if c.From(path) == "" {
				t.Errorf("%s is from nowhere", path)
			}
		}
		if c.VMI, err = offline.Default(c.VMI, c.KubeVirt); err != nil {
			return
		}
		c.LauncherImage = "image"
		in, err := c.Input(render.LauncherPod)
		if err == nil {
			_, err = template.Default().Render(render.LauncherPod, in)
		}
		if err != nil && !errors.Is(err, render.ErrInvalid) && !errors.Is(err, render.ErrMissingFact) {
			t.Logf("%v", err)
		}
	})
}

// What is not rejected here is rejected as any VMI is.
func TestStart_HostileInput(t *testing.T) {
	for i, want := range []string{
		"VirtualMachine default/vm: spec.template: missing virtual machine template; ",
		"VirtualMachine default/vm: spec.template: missing virtual machine template; ",
		"VirtualMachine default/vm: spec.instancetype: Either Name or InferFromVolume should be provided",
		"", "",
		"VirtualMachine default/vm: spec.instancetype, spec.preference: failure checking preference requirements: 4294967295 vCPUs provided by the instance type are not divisible",
		"",
		"VirtualMachine default/vm: spec.instancetype: ControllerRevision default/rev holds no instance type or preference: ",
		"VirtualMachine default/vm: spec.instancetype: ControllerRevision default/rev holds no instance type or preference: ",
		"VirtualMachine default/vm: spec.instancetype.inferFromVolume: DataSource default/c: more than 8 DataSources refer to each other; ",
	} {
		_, err := start(t, hostile[i], false)
		if want == "" {
			t.Logf("%d: %v", i, err)
			continue
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s\nerror %v\nwant %s", hostile[i], err, want)
		}
	}
}
