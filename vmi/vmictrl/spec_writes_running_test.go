// SPDX-License-Identifier: Apache-2.0

package vmictrl_test

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	v1 "kubevirt.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/virtloom/virtloom/vmi"
	"github.com/virtloom/virtloom/vmi/vmictrl"
)

const migrationRequired = v1.VirtualMachineInstanceMigrationRequired

// runningRows cover a VMI after its handoff.
var runningRows = map[string]row{
	"52 at rest, with a Pod that is Running":                                                                {scene: scene{phase: v1.Scheduled}},
	"52 at rest, with a Pod of phase Unknown":                                                               {scene: scene{phase: v1.Scheduled, status: ended(corev1.PodUnknown)}},
	"52 at rest, with a Pod that is Pending":                                                                {scene: scene{phase: v1.Scheduled, status: ended(corev1.PodPending)}},
	"52 at rest, with a Pod that is Succeeded":                                                              {scene: scene{phase: v1.Scheduled, status: ended(corev1.PodSucceeded), guest: notReady("PodTerminating")}},
	"52 at rest, with a Pod that is Failed":                                                                 {scene: scene{phase: v1.Scheduled, status: ended(corev1.PodFailed), guest: notReady("PodTerminating")}},
	"53 Scheduled, and the Pod is gone (better: the time is noted, and the offer withdrawn)":                {scene: scene{phase: v1.Scheduled, noPod: true}},
	"53 Running, and the Pod is gone (better: the time is noted, and the node must see to the guest's end)": {scene: scene{phase: v1.Running, noPod: true}},
	"55 Running, and the Pod is ready":                                                                      {scene: scene{phase: v1.Running, guest: notReady("GuestNotRunning")}},
	"55 Running, and the Pod is being deleted":                                                              {scene: scene{phase: v1.Running, more: deletePod}},
	"55 Running, and the Pod has no Ready condition":                                                        {scene: scene{phase: v1.Running, status: withoutReady}},
	"56 the Pods that are there":                                                                            {scene: scene{phase: v1.Running, guest: func(g *v1.VirtualMachineInstance) { g.Status.ActivePods = nil }}},
	"59 the finalizer of old":                                                                               {scene: scene{phase: v1.Running, guest: finalizers("foregroundDeleteVirtualMachine")}},
	"67 more CPUs are asked for":                                                                            {scene: scene{phase: v1.Running, guest: moreSockets(4)}},
	"67 more CPUs are asked for where there can be none":                                                    {scene: scene{phase: v1.Running, guest: moreSockets(0)}},
	"68 no condition, and nothing is known":                                                                 evaluated(corev1.ConditionUnknown, ""),
	"68 no condition, and False":                                                                            evaluated(corev1.ConditionFalse, ""),
	"68 no condition, and True":                                                                             evaluated(corev1.ConditionTrue, ""),
	"68 False, and still False":                                                                             evaluated(corev1.ConditionFalse, corev1.ConditionFalse),
	"68 True, and then False":                                                                               evaluated(corev1.ConditionFalse, corev1.ConditionTrue),
	"68 False, and then True":                                                                               evaluated(corev1.ConditionTrue, corev1.ConditionFalse),
	"68 False, and then nothing is known":                                                                   evaluated(corev1.ConditionUnknown, corev1.ConditionFalse),
	"68 True, and then nothing is known":                                                                    evaluated(corev1.ConditionUnknown, corev1.ConditionTrue),
	"70 a guest that moves must not":                                                                        {edit: evaluates(corev1.ConditionTrue), scene: scene{phase: v1.Running, guest: moves}},
	"71 a device of the network is plugged in":                                                              {scene: scene{phase: v1.Running, guest: newInterface(v1.InterfaceBindingMethod{SRIOV: &v1.InterfaceSRIOV{}})}},
	"71 a bridge is plugged in":                                                                             {scene: scene{phase: v1.Running, guest: newInterface(v1.InterfaceBindingMethod{Bridge: &v1.InterfaceBridge{}})}},
	"73 what the hypervisor needs of the memory (better: it is stored)": {edit: func(r *vmictrl.Reconciler) { r.Config.ReportOverhead = true },
		scene: scene{phase: v1.Running, pod: overhead, guest: withMemory}},
	"115 conditions in another order": {scene: scene{phase: v1.Running, guest: func(g *v1.VirtualMachineInstance) {
		hasCondition("LiveMigratable", corev1.ConditionTrue, "")(g)
		slices.Reverse(g.Status.Conditions)
	}}},
	"124 no conditions at all": {scene: scene{phase: v1.Running, guest: func(g *v1.VirtualMachineInstance) { g.Status.Conditions = nil }}},
	"125 another writer was first (better: what does not concern both is not refused)": {wrap: overtakenBy(`{"status":{"phase":"Succeeded"}}`),
		scene: scene{phase: v1.Scheduled, noPod: true}},
	"125 another writer wrote something else": {wrap: overtakenBy(`{"metadata":{"annotations":{"example.test/other":"x"}}}`),
		scene: scene{phase: v1.Scheduled, noPod: true}},
}

// unready maps reasons of Ready=False to messages.
var unready = map[string]string{
	"GuestNotRunning": "Guest VM is not reported as running",
	"PodNotExists":    "virt-launcher pod has not yet been scheduled",
	"PodTerminating":  "virt-launcher pod is terminating",
}

func notReady(reason string) func(*v1.VirtualMachineInstance) {
	return func(g *v1.VirtualMachineInstance) {
		g.Status.Conditions = []v1.VirtualMachineInstanceCondition{
			{Type: v1.VirtualMachineInstanceReady, Status: corev1.ConditionFalse, Reason: reason, Message: unready[reason]}}
	}
}

func withoutReady(st *corev1.PodStatus) { st.Conditions = st.Conditions[1:] }

func finalizers(all ...string) func(*v1.VirtualMachineInstance) {
	return func(g *v1.VirtualMachineInstance) { g.Finalizers = all }
}

// moreSockets requests a second socket for a VMI with one.
func moreSockets(most uint32) func(*v1.VirtualMachineInstance) {
	return func(g *v1.VirtualMachineInstance) {
		g.Spec.Domain.CPU = &v1.CPU{Cores: 1, Sockets: 2, Threads: 1, MaxSockets: most}
		g.Status.CurrentCPUTopology = &v1.CPUTopology{Cores: 1, Sockets: 1, Threads: 1}
	}
}

func evaluates(verdict corev1.ConditionStatus) func(*vmictrl.Reconciler) {
	return func(r *vmictrl.Reconciler) {
		r.Config.MigrationEvaluator = vmi.MigrationEvaluatorFunc(func(*v1.VirtualMachineInstance, *corev1.Pod, time.Time) vmi.Verdict {
			return vmi.Verdict{Status: verdict, Reason: "so it is"}
		})
	}
}

// evaluated is a VMI with the given condition status, if any, and a new verdict.
func evaluated(verdict, was corev1.ConditionStatus) row {
	r := row{scene: scene{phase: v1.Running}, edit: evaluates(verdict)}
	reason := map[corev1.ConditionStatus]string{
		corev1.ConditionTrue:  v1.VirtualMachineInstanceReasonAutoMigrationDueToLiveUpdate,
		corev1.ConditionFalse: v1.VirtualMachineInstanceReasonAutoMigrationPending}[was]
	if was != "" {
		r.scene.guest = hasCondition(migrationRequired, was, reason)
	}
	return r
}

func moves(g *v1.VirtualMachineInstance) {
	now := metav1.Now()
	g.Status.MigrationState = &v1.VirtualMachineInstanceMigrationState{StartTimestamp: &now}
}

// newInterface adds an interface of another network to a running VMI.
func newInterface(binding v1.InterfaceBindingMethod) func(*v1.VirtualMachineInstance) {
	return func(g *v1.VirtualMachineInstance) {
		g.Spec.Domain.Devices.Interfaces = []v1.Interface{{Name: "second", InterfaceBindingMethod: binding}}
		g.Spec.Networks = []v1.Network{{Name: "second", NetworkSource: v1.NetworkSource{Multus: &v1.MultusNetwork{NetworkName: "second"}}}}
	}
}

func overhead(p *corev1.Pod) { p.Annotations[v1.MemoryOverheadAnnotationBytes] = "268435456" }

func withMemory(g *v1.VirtualMachineInstance) {
	size := resource.MustParse("64Mi")
	g.Status.Memory = &v1.MemoryStatus{GuestAtBoot: &size, GuestCurrent: &size, GuestRequested: &size}
}

// overtakenBy patches the VMI right before the controller's first patch arrives.
func overtakenBy(patch string) func(*world, *v1.VirtualMachineInstance, http.RoundTripper) http.RoundTripper {
	return func(w *world, g *v1.VirtualMachineInstance, next http.RoundTripper) http.RoundTripper {
		var done atomic.Bool
		return roundTripper(func(req *http.Request) (*http.Response, error) {
			if req.Method == http.MethodPatch && strings.HasSuffix(req.URL.Path, "/"+g.Name) && done.CompareAndSwap(false, true) {
				o := &v1.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: g.Name}}
				if err := w.Patch(context.WithoutCancel(req.Context()), o, client.RawPatch("application/merge-patch+json", []byte(patch))); err != nil {
					return nil, err
				}
			}
			return next.RoundTrip(req)
		})
	}
}
