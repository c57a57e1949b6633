// SPDX-License-Identifier: Apache-2.0

package migration

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/handoff"
)

// ignored is the lease of a VMI that was offered to a stock virt-handler, which has taken it.
var ignored = handoff.Lease{State: handoff.Offered, Epoch: 1, Holder: sourceNode}

func TestStockNodes_KubeVirtProtocolOnly(t *testing.T) {
	for name, lease := range map[string]*handoff.Lease{
		"placed by a stock virt-controller":                nil,
		"offered by a lease that its virt-handler ignores": &ignored,
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			delete(w.vmi.Annotations, handoff.Annotation)
			if lease != nil {
				w.put(*lease)
			}
			before := w.vmi.Annotations[handoff.Annotation]
			w.until(v1.MigrationScheduling)
			w.podBecomesReady(targetNode)
			w.passes()
			ms := w.vmi.Status.MigrationState
			if ms == nil || w.migration.Status.Phase != v1.MigrationPreparingTarget || w.vmi.Labels[v1.MigrationTargetNodeNameLabel] != targetNode {
				t.Fatalf("phase is %q, migration state %+v, labels %v", w.migration.Status.Phase, ms, w.vmi.Labels)
			}
			ms.TargetNodeAddress = "192.0.2.1"
			w.passes()
			ms.StartTimestamp = &metav1.Time{Time: w.now}
			w.passes()
			if w.migration.Status.Phase != v1.MigrationRunning {
				t.Fatalf("phase is %q, want Running", w.migration.Status.Phase)
			}
			w.vmi.Status.NodeName, w.vmi.Labels[v1.NodeNameLabel] = targetNode, targetNode
			ms.Completed = true
			w.passes()
			if w.migration.Status.Phase != v1.MigrationSucceeded || w.pods["src"] != nil || w.pods["dst"] == nil {
				t.Errorf("phase is %q, Pods are %v; want Succeeded and the target's", w.migration.Status.Phase, w.pods)
			}
			if l := w.lease(); w.vmi.Annotations[handoff.Annotation] != before || l.State != handoff.Owned || l.Holder != targetNode {
				t.Errorf("the annotation is %q, the lease %+v; nobody was to write it", w.vmi.Annotations[handoff.Annotation], l)
			}
		})
	}
}

func TestStockNodes_AbortByMigrationState(t *testing.T) {
	w := newWorld(t)
	w.put(ignored)
	w.until(v1.MigrationPreparingTarget)
	ms := w.vmi.Status.MigrationState
	ms.TargetNodeAddress, ms.StartTimestamp = "192.0.2.1", &metav1.Time{Time: w.now}
	w.migration.DeletionTimestamp = &metav1.Time{Time: w.now}
	w.passes()
	if ms := w.vmi.Status.MigrationState; !ms.AbortRequested || ms.Failed || w.migration.IsFinal() || w.pods["dst"] == nil {
		t.Errorf("phase %q, target Pod %v, migration state %+v; want the abort to be asked for", w.migration.Status.Phase, w.pods["dst"] != nil, ms)
	}
}

func TestStateClaims_KeptAfterEndOnStockNodes(t *testing.T) {
	w := newWorld(t)
	w.put(ignored)
	w.keepState(corev1.ReadWriteOnce)
	w.until(v1.MigrationPreparingTarget)
	ms := w.vmi.Status.MigrationState
	ms.TargetNodeAddress, ms.StartTimestamp = "192.0.2.1", &metav1.Time{Time: w.now}
	w.passes()
	w.vmi.Status.Phase = v1.Failed
	w.passes()
	if w.migration.Status.Phase != v1.MigrationFailed || len(w.claims) != 2 {
		t.Errorf("phase %q, claims %v", w.migration.Status.Phase, w.claimNames())
	}
}
