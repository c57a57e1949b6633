// SPDX-License-Identifier: Apache-2.0

package vmctrl

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/internal/backlog"
	"github.com/virtloom/virtloom/vm"
)

// settles is how long the conditions of a VMI that starts may change before its VM has them, unless its users see more of it.
const settles = 5 * backlog.Again

// beforeStart are the printable statuses that a VM may keep for a while when it has become Starting, because others wait.
var beforeStart = []v1.VirtualMachinePrintableStatus{"", v1.VirtualMachineStatusStopped, v1.VirtualMachineStatusProvisioning, v1.VirtualMachineStatusStarting}

// deferStatus reports whether the status of a VM need not be stored yet, and when to reconsider that. It is deferred only
// while its VMI starts, and only what follows from the VMI: a pass at any time, of any replica, computes it again. Under load
// that is all of it, for backlog.Patience at most. Otherwise it is conditions that are no news, until they have settled.
func (r actor) deferStatus(g *gathered, plan vm.Plan) (after time.Duration, yes bool) {
	was, want := &g.VM.Status, &plan.VM.Status
	if len(plan.Events) > 0 || g.VM.DeletionTimestamp != nil || !onlyStarts(g, was, want) {
		return 0, false
	}
	now := r.Clock.Now()
	since, busy := r.backlog.Saturated(g.owner.Key, r.Workers, now)
	seen := was.PrintableStatus != want.PrintableStatus || was.Created != want.Created
	left := since.Add(settles).Sub(now)
	switch {
	case busy:
		after = backlog.Again
	case seen, left <= 0:
		return 0, false
	default:
		after = left
	}
	r.backlog.Put(g.owner.Key, since)
	return after, true
}

// onlyStarts reports whether two statuses differ, and only in what follows from a VMI that starts, whether or not the cache has it yet.
func onlyStarts(g *gathered, was, want *v1.VirtualMachineStatus) bool {
	created := want.Created || slices.ContainsFunc(g.Pending, func(w vm.Write) bool { return w.Verb == vm.CreateVMI })
	if want.PrintableStatus != v1.VirtualMachineStatusStarting || !created || want.Ready || !slices.Contains(beforeStart, was.PrintableStatus) {
		return false
	}
	rest := was.DeepCopy()
	rest.PrintableStatus, rest.Created, rest.Ready = want.PrintableStatus, want.Created, want.Ready
	rest.ObservedGeneration, rest.DesiredGeneration, rest.Conditions = want.ObservedGeneration, want.DesiredGeneration, want.Conditions
	// Only RerunOnFailure is decided by the recorded strategy.
	if rest.RunStrategy == "" && want.RunStrategy != v1.RunStrategyRerunOnFailure {
		rest.RunStrategy = want.RunStrategy
	}
	return equality.Semantic.DeepEqual(rest, want) && !equality.Semantic.DeepEqual(was, want) && !news(was.Conditions, want.Conditions)
}

// news reports whether conditions differ in more than that the VM is not ready, and in conditions that are true for its VMI. A
// condition that has become false, or is a VM's own, is news.
func news(was, want []v1.VirtualMachineCondition) bool {
	told := map[v1.VirtualMachineConditionType]v1.VirtualMachineCondition{}
	for _, c := range was {
		told[c.Type] = c
	}
	for _, c := range want {
		before, known := told[c.Type]
		delete(told, c.Type)
		switch {
		case known && before.Status == c.Status && before.Reason == c.Reason:
		case c.Type == v1.VirtualMachineReady:
		case c.Status != corev1.ConditionTrue, slices.Contains(ownConditions, c.Type):
			return true
		}
	}
	for t := range told {
		if slices.Contains(ownConditions, t) {
			return true
		}
	}
	return false
}

// ownConditions are reported to the users of a VM, and not those of its VMI.
var ownConditions = []v1.VirtualMachineConditionType{v1.VirtualMachineFailure, v1.VirtualMachineRestartRequired, v1.VirtualMachineManualRecoveryRequired}
