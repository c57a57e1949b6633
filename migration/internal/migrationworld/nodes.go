// SPDX-License-Identifier: Apache-2.0

package migrationworld

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/handoff"
	"github.com/virtloom/virtloom/internal/launcherpod"
)

// The nodes and the cluster, as far as they take part. Each does its step only
// when it is its turn, so that calling all of them in any order is harmless.

// MarkUnschedulable reports that no node takes the target Pod.
func (w *World) MarkUnschedulable(message string) {
	w.Pods["dst"].Status.Conditions = []corev1.PodCondition{{
		Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable, Message: message,
	}}
}

// PodBecomesReady schedules the target Pod to the node and starts it, with the Pods beside it.
func (w *World) PodBecomesReady(node string) {
	if p := w.Pods["dst"]; p != nil {
		p.Spec.NodeName = node
		p.Status.Phase = corev1.PodRunning
	}
	for _, p := range w.Pods {
		if p.Labels[v1.AppLabel] == launcherpod.AttachmentApp && p.Status.Phase == corev1.PodPending {
			p.Status.Phase = corev1.PodRunning
		}
	}
}

// TargetPrepares makes the target node ready to receive.
func (w *World) TargetPrepares() {
	if w.Lease().State == handoff.Preparing {
		w.Step(handoff.Event{Kind: handoff.Ready, Node: TargetNode})
		w.VMI.Status.MigrationState.TargetNodeAddress = "192.0.2.1"
	}
}

// SourceBegins makes the source node begin to send.
func (w *World) SourceBegins() {
	if w.Lease().State == handoff.Prepared {
		w.Step(handoff.Event{Kind: handoff.Begin, Node: SourceNode})
		w.VMI.Status.MigrationState.StartTimestamp = &metav1.Time{Time: w.Now}
	}
}

// TargetTakesOver completes the migration at the target node.
func (w *World) TargetTakesOver() {
	if w.Lease().State == handoff.Moving {
		w.Step(handoff.Event{Kind: handoff.TakeOver, Node: TargetNode})
		w.Step(handoff.Event{Kind: handoff.Finalize, Node: TargetNode})
		ms := w.VMI.Status.MigrationState
		ms.Completed, ms.EndTimestamp = true, &metav1.Time{Time: w.Now}
	}
}

// SourceReverts ends the migration at the source node without success.
func (w *World) SourceReverts(why string) {
	if w.Lease().State == handoff.Moving {
		w.Step(handoff.Event{Kind: handoff.Revert, Node: SourceNode, Message: why})
		ms := w.VMI.Status.MigrationState
		ms.Failed, ms.Completed, ms.FailureReason = true, true, why
	}
}
