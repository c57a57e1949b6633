// SPDX-License-Identifier: Apache-2.0

package diagnose_test

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/vmi"
	"github.com/virtloom/virtloom/vmi/diagnose"
)

var exampleNow = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

func exampleVMI(phase v1.VirtualMachineInstancePhase, c v1.VirtualMachineInstanceCondition) *v1.VirtualMachineInstance {
	return &v1.VirtualMachineInstance{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "shop", Name: "web", UID: "uid-1", CreationTimestamp: metav1.NewTime(exampleNow.Add(-time.Hour)),
			Finalizers: []string{v1.VirtualMachineInstanceFinalizer},
		},
		Status: v1.VirtualMachineInstanceStatus{Phase: phase, Conditions: []v1.VirtualMachineInstanceCondition{c}},
	}
}

// Why does a VMI not start?
func ExampleOf() {
	failed := exampleVMI(v1.Pending, v1.VirtualMachineInstanceCondition{
		Type: v1.VirtualMachineInstanceSynchronized, Status: corev1.ConditionFalse,
		Reason: vmi.ReasonFailedCreate, Message: "exceeded quota: pods; raise the ResourceQuota",
	})
	fmt.Print(diagnose.Of(vmi.Snapshot{VMI: failed}, exampleNow))
	// Output:
	// Guest         shop/web
	// Phase         Pending
	// Node          none yet
	// Lease         none
	// Pod           none
	// Next write    CreateLauncher: the VirtualMachineInstance has no Pod
	// Finding       LastWriteFailed (FailedCreate): the last attempt failed: exceeded quota: pods; raise the ResourceQuota
	//   why         the launcher Pod could not be created
	//   until       a retry succeeds, by controller
	//   remedy      do as the message says; retried when a related object changes, and every minute
}

// An alert is about what others do not resolve by themselves, so a program looks at the kinds.
func ExampleFindingKind() {
	alert := func(s vmi.Snapshot) {
		for _, f := range diagnose.Of(s, exampleNow).Findings {
			switch f.Kind {
			case diagnose.WaitingForController, diagnose.WaitingForNode, diagnose.WaitingForMigration, diagnose.WritePending:
				continue // it goes on, or becomes another kind
			case diagnose.Ending, diagnose.UpdatePending:
				fmt.Printf("info: %s by %s\n", f.What, f.Responsible)
			case diagnose.LastWriteFailed, diagnose.Paused:
				fmt.Printf("error: %s: %s\n", f.Reason, f.Remedy)
			default:
				fmt.Printf("warning: %s: %s\n", f.Kind, f.What)
			}
		}
	}
	g := exampleVMI(v1.Running, v1.VirtualMachineInstanceCondition{
		Type: v1.VirtualMachineInstancePaused, Status: corev1.ConditionTrue, Reason: "PausedIOError",
	})
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "shop", Name: "virt-launcher-web", UID: "pod-1",
			Labels:          map[string]string{v1.AppLabel: "virt-launcher", v1.CreatedByLabel: string(g.UID)},
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(g, v1.VirtualMachineInstanceGroupVersionKind)},
		},
		Spec:   corev1.PodSpec{NodeName: "node-a"},
		Status: corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}},
	}
	g.Status.NodeName = "node-a"
	alert(vmi.Snapshot{VMI: g, Pods: []*corev1.Pod{pod}})

	g.Status.Conditions[0].Type, g.Status.Conditions[0].Reason = v1.VirtualMachineInstanceMemoryChange, ""
	alert(vmi.Snapshot{VMI: g, Pods: []*corev1.Pod{pod}})
	// Output:
	// error: PausedIOError: check the storage of its disks: space, connection, locks; then unpause it
	// info: the domain does not have these spec changes yet: HotMemoryChange by user
}
