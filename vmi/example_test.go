// SPDX-License-Identifier: Apache-2.0

package vmi_test

import (
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/vmi"
)

var exampleNow = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// exampleVMI has no Pod yet.
func exampleVMI() *v1.VirtualMachineInstance {
	return &v1.VirtualMachineInstance{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "ns", Name: "guest", UID: "uid-1", ResourceVersion: "7", Labels: map[string]string{},
			Finalizers: []string{v1.VirtualMachineInstanceFinalizer},
		},
		Status: v1.VirtualMachineInstanceStatus{Phase: v1.Pending},
	}
}

func ExampleDecide() {
	g := exampleVMI()
	fmt.Println(vmi.Decide(vmi.Snapshot{VMI: g}, time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)))
	// Output:
	// phase=Pending
	//   do CreateLauncher (the VirtualMachineInstance has no Pod)
}

func ExampleExplain() {
	g := exampleVMI()
	g.Spec.Volumes = []v1.Volume{{Name: "root", VolumeSource: v1.VolumeSource{DataVolume: &v1.DataVolumeSource{Name: "root"}}}}
	bound := map[string]*corev1.PersistentVolumeClaim{"root": {Status: corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimBound}}}
	for _, storage := range []vmi.Storage{{}, {Claims: bound}} {
		waits := vmi.Explain(vmi.Snapshot{VMI: g, Storage: storage}, exampleNow)
		fmt.Println(len(waits), "waits")
		for _, w := range waits {
			fmt.Printf("%s: %s\nuntil %s, by the %s\n", w.Reason, w.Message, w.Until, w.Responsible)
		}
	}
	// Output:
	// 1 waits
	// FailedPvcNotFound: spec.volumes[0].dataVolume.name: neither PersistentVolumeClaim ns/root nor a DataVolume of the same name exists; create the DataVolume or correct the name
	// until the claim is created, by the user
	// 0 waits
}

// running is the launcher Pod of a VMI that runs on node-a.
func running(g *v1.VirtualMachineInstance) *corev1.Pod {
	g.Status.Phase, g.Status.NodeName = v1.Running, "node-a"
	g.Labels[v1.NodeNameLabel] = "node-a"
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "ns", Name: "virt-launcher-guest", UID: "pod-1",
			Labels:          map[string]string{v1.AppLabel: "virt-launcher", v1.CreatedByLabel: string(g.UID)},
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(g, v1.VirtualMachineInstanceGroupVersionKind)},
		},
		Spec:   corev1.PodSpec{NodeName: "node-a"},
		Status: corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}},
	}
}

// A cluster in which every VMI belongs to a team gives no Pod to one that does not.
func ExampleSpecValidator() {
	var owned vmi.SpecValidator = func(g *v1.VirtualMachineInstance) []metav1.StatusCause {
		if g.Labels["team"] != "" {
			return nil
		}
		return []metav1.StatusCause{{Field: "metadata.labels[team]", Message: "Required value: the team that pays for it"}}
	}
	for _, w := range vmi.Explain(vmi.Snapshot{VMI: exampleVMI(), Config: vmi.Config{SpecValidator: owned}}, exampleNow) {
		fmt.Println(w.Reason, w.Message)
	}
	// Output:
	// FailedCreateValidation failed create validation: metadata.labels[team]: Required value: the team that pays for it
}

// A program migrates VMIs for a reason of its own, here the annotation of their network plugin.
func ExampleMigrationEvaluator() {
	var evaluator vmi.MigrationEvaluator = vmi.MigrationEvaluatorFunc(func(g *v1.VirtualMachineInstance, pod *corev1.Pod, now time.Time) vmi.Verdict {
		if pod.Annotations["network"] == g.Annotations["network"] {
			return vmi.Verdict{Status: corev1.ConditionUnknown}
		}
		return vmi.Verdict{Status: corev1.ConditionTrue, Reason: "the network has changed"}
	})
	g := exampleVMI()
	g.Annotations = map[string]string{"network": "fast"}
	pod := running(g)
	p := vmi.Decide(vmi.Snapshot{VMI: g, Pods: []*corev1.Pod{pod}, Config: vmi.Config{MigrationEvaluator: evaluator}}, exampleNow)
	for _, c := range p.VMI.Status.Conditions {
		if c.Type == v1.VirtualMachineInstanceMigrationRequired {
			fmt.Println(c.Type, c.Status, c.Message)
		}
	}
	// Output:
	// MigrationRequired True the network has changed
}

// A VMI whose guest relies on the frequency of the time stamp counter starts on nodes that have it.
func ExampleTSCRequirement() {
	g := exampleVMI()
	for _, policy := range []string{"optional", "require"} {
		g.Spec.Domain.CPU = &v1.CPU{Features: []v1.CPUFeature{{Name: "invtsc", Policy: policy}}}
		s := vmi.Snapshot{VMI: g}
		switch need := vmi.TSCRequirement(g); need {
		case vmi.TSCForBoot, vmi.TSCForMigration:
			// Only now the nodes have to be read.
			s.Nodes = []vmi.Node{{Name: "node-a", Schedulable: true, Labels: map[string]string{v1.CPUTimerLabel + "tsc-scalable": "true"}}}
			fmt.Println("the frequency is", need)
		default:
			fmt.Println(need)
		}
		for _, w := range vmi.Explain(s, exampleNow) {
			fmt.Println(w.Reason, w.Message)
		}
	}
	// Output:
	// not required
	// the frequency is required for boot
	// FailedGatherhingClusterTopologyHints vmi: VirtualMachineInstance ns/guest: a TSC frequency is required for boot, and no node that is schedulable or runs VMIs has label cpu-timer.node.kubevirt.io/tsc-frequency; use nodes with an invariant TSC, or set minimumClusterTSCFrequency
}

// Context identifiers are unique in the cluster. After a restart, those that VMIs have count.
func ExampleCIDs() {
	cids := vmi.NewCIDs(func() uint32 { return 100 }) // where the search begins
	stored := exampleVMI()
	stored.Status.VSOCKCID = new(uint32(100))
	cids.Sync([]v1.VirtualMachineInstance{*stored})
	cid, err := cids.Allocate(types.NamespacedName{Namespace: "ns", Name: "another"})
	fmt.Println(cid, err)
	// Output:
	// 103 <nil>
}

// A running launcher Pod follows the labels of its VMI: KubeVirt's, and those that a program selects.
func ExamplePodMetadata() {
	g := exampleVMI()
	pod := running(g)
	g.Labels["cost/center"] = "42"
	g.Status.EvacuationNodeName = "node-a"
	labels, annotations := vmi.PodMetadata(g, pod, vmi.PodKeys{Labels: []string{"cost/*"}})
	for _, changes := range []map[string]*string{labels, annotations} {
		for _, key := range slices.Sorted(maps.Keys(changes)) {
			fmt.Printf("%s=%q\n", key, *changes[key])
		}
	}
	// Output:
	// cost/center="42"
	// kubevirt.io/nodeName="node-a"
	// descheduler.alpha.kubernetes.io/eviction-in-progress="true"
	// descheduler.alpha.kubernetes.io/request-evict-only=""
}

// A controller stores status.interfaces as they follow from the Pod; the node agent adds addresses.
func ExampleInterfaces() {
	var compute vmi.NetworkStatus = vmi.Interfaces // the default of Config
	g := exampleVMI()
	g.Spec.Networks = []v1.Network{*v1.DefaultPodNetwork()}
	g.Spec.Domain.Devices.Interfaces = []v1.Interface{{Name: "default"}}
	g.Status.Interfaces = []v1.VirtualMachineInstanceNetworkInterface{{Name: "default", IP: "10.0.0.2", InfoSource: "domain"}}
	interfaces, err := compute(g, running(g))
	for _, i := range interfaces {
		fmt.Println(i.Name, i.PodInterfaceName, i.IP, i.InfoSource)
	}
	fmt.Println(err)
	// Output:
	// default eth0 10.0.0.2 domain
	// <nil>
}

// Why has a VMI no launcher Pod? Checks run in order, and the first that blocks counts.
func ExamplePlan_Blocked() {
	g := exampleVMI()
	g.Spec.Volumes = []v1.Volume{{Name: "root", VolumeSource: v1.VolumeSource{DataVolume: &v1.DataVolumeSource{Name: "root"}}}}
	plan := vmi.Decide(vmi.Snapshot{VMI: g}, exampleNow)
	if w := plan.Blocked(); w != nil {
		fmt.Println(w.Reason, "-", w.Responsible)
	}
	for _, e := range plan.Events {
		fmt.Println(inWords(e))
	}
	// Output:
	// FailedPvcNotFound - user
	// warning=true FailedPvcNotFound
}

// inWords returns an event as a program would log it.
func inWords(e vmi.Event) string { return fmt.Sprintf("warning=%t %s", e.Warning, e.Reason) }
