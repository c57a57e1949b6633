// SPDX-License-Identifier: Apache-2.0

package migration_test

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
			delete(w.VMI.Annotations, handoff.Annotation)
			if lease != nil {
				w.Put(*lease)
			}
			before := w.VMI.Annotations[handoff.Annotation]
			w.Until(v1.MigrationScheduling)
			w.PodBecomesReady(targetNode)
			w.Passes()
			ms := w.VMI.Status.MigrationState
			if ms == nil || w.Migration.Status.Phase != v1.MigrationPreparingTarget || w.VMI.Labels[v1.MigrationTargetNodeNameLabel] != targetNode {
				t.Fatalf("phase is %q, migration state %+v, labels %v", w.Migration.Status.Phase, ms, w.VMI.Labels)
			}
			ms.TargetNodeAddress = "192.0.2.1"
			w.Passes()
			ms.StartTimestamp = &metav1.Time{Time: w.Now}
			w.Passes()
			if w.Migration.Status.Phase != v1.MigrationRunning {
				t.Fatalf("phase is %q, want Running", w.Migration.Status.Phase)
			}
			w.VMI.Status.NodeName, w.VMI.Labels[v1.NodeNameLabel] = targetNode, targetNode
			ms.Completed = true
			w.Passes()
			if w.Migration.Status.Phase != v1.MigrationSucceeded || w.Pods["src"] != nil || w.Pods["dst"] == nil {
				t.Errorf("phase is %q, Pods are %v; want Succeeded and the target's", w.Migration.Status.Phase, w.Pods)
			}
			if l := w.Lease(); w.VMI.Annotations[handoff.Annotation] != before || l.State != handoff.Owned || l.Holder != targetNode {
				t.Errorf("the annotation is %q, the lease %+v; nobody was to write it", w.VMI.Annotations[handoff.Annotation], l)
			}
		})
	}
}

func TestStockNodes_AbortByMigrationState(t *testing.T) {
	w := newWorld(t)
	w.Put(ignored)
	w.Until(v1.MigrationPreparingTarget)
	ms := w.VMI.Status.MigrationState
	ms.TargetNodeAddress, ms.StartTimestamp = "192.0.2.1", &metav1.Time{Time: w.Now}
	w.Migration.DeletionTimestamp = &metav1.Time{Time: w.Now}
	w.Passes()
	if ms := w.VMI.Status.MigrationState; !ms.AbortRequested || ms.Failed || w.Migration.IsFinal() || w.Pods["dst"] == nil {
		t.Errorf("phase %q, target Pod %v, migration state %+v; want the abort to be asked for", w.Migration.Status.Phase, w.Pods["dst"] != nil, ms)
	}
}

func TestStateClaims_KeptAfterEndOnStockNodes(t *testing.T) {
	w := newWorld(t)
	w.Put(ignored)
	w.keepState(corev1.ReadWriteOnce)
	w.Until(v1.MigrationPreparingTarget)
	ms := w.VMI.Status.MigrationState
	ms.TargetNodeAddress, ms.StartTimestamp = "192.0.2.1", &metav1.Time{Time: w.Now}
	w.Passes()
	w.VMI.Status.Phase = v1.Failed
	w.Passes()
	if w.Migration.Status.Phase != v1.MigrationFailed || len(w.Claims) != 2 {
		t.Errorf("phase %q, claims %v", w.Migration.Status.Phase, w.claimNames())
	}
}
