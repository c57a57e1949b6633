// SPDX-License-Identifier: Apache-2.0

package handoff_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/handoff"
)

func TestOfUnderstandsWhatStockKubeVirtWrites(t *testing.T) {
	started := metav1.NewTime(now)
	onA := map[string]string{v1.NodeNameLabel: nodeA}
	for name, tt := range map[string]struct {
		labels map[string]string
		status v1.VirtualMachineInstanceStatus
		want   handoff.Lease
	}{
		"not placed":       {nil, v1.VirtualMachineInstanceStatus{Phase: v1.Scheduling}, handoff.Lease{}},
		"handed over":      {onA, v1.VirtualMachineInstanceStatus{Phase: v1.Scheduled}, handoff.Lease{State: handoff.Offered, Holder: nodeA}},
		"running":          {onA, v1.VirtualMachineInstanceStatus{Phase: v1.Running}, handoff.Lease{State: handoff.Owned, Holder: nodeA}},
		"label lost":       {nil, v1.VirtualMachineInstanceStatus{Phase: v1.Running, NodeName: nodeA}, handoff.Lease{State: handoff.Owned, Holder: nodeA}},
		"ended":            {onA, v1.VirtualMachineInstanceStatus{Phase: v1.Succeeded}, handoff.Lease{State: handoff.Released}},
		"target preparing": {onA, migrating(v1.VirtualMachineInstanceMigrationState{}), inMove(handoff.Preparing)},
		"target ready":     {onA, migrating(v1.VirtualMachineInstanceMigrationState{TargetNodeAddress: "10.0.0.2"}), inMove(handoff.Prepared)},
		"moving":           {onA, migrating(v1.VirtualMachineInstanceMigrationState{TargetNodeAddress: "10.0.0.2", StartTimestamp: &started}), inMove(handoff.Moving)},
		"moved before":     {onA, migrating(v1.VirtualMachineInstanceMigrationState{Completed: true}), handoff.Lease{State: handoff.Owned, Holder: nodeA}},
	} {
		t.Run(name, func(t *testing.T) {
			vmi := &v1.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{Labels: tt.labels}, Status: tt.status}
			got, err := handoff.Of(vmi)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Fatalf("(-want +got):\n%s", diff)
			}
		})
	}
}

func migrating(m v1.VirtualMachineInstanceMigrationState) v1.VirtualMachineInstanceStatus {
	m.MigrationUID, m.SourceNode, m.TargetNode = tag, nodeA, nodeB
	return v1.VirtualMachineInstanceStatus{Phase: v1.Running, NodeName: nodeA, MigrationState: &m}
}

func inMove(s handoff.State) handoff.Lease {
	return handoff.Lease{State: s, Holder: nodeA, Target: nodeB, Tag: tag}
}

func TestOfSeesAStockMoveBesideAStoredLease(t *testing.T) {
	owned := handoff.Lease{State: handoff.Owned, Epoch: 4, Holder: nodeA}
	preparing := handoff.Lease{State: handoff.Preparing, Epoch: 5, Holder: nodeA, Target: nodeB, Tag: tag}
	moving := preparing
	moving.State = handoff.Moving
	before := owned
	before.Last = &handoff.Outcome{Epoch: 3, Tag: tag, Result: handoff.ResultReverted}
	for name, tt := range map[string]struct {
		lease handoff.Lease
		state v1.VirtualMachineInstanceMigrationState
		want  handoff.Lease
	}{
		"asked for":             {owned, v1.VirtualMachineInstanceMigrationState{}, preparing},
		"asked for and refused": {before, v1.VirtualMachineInstanceMigrationState{}, before},
		"ended":                 {owned, v1.VirtualMachineInstanceMigrationState{Completed: true}, owned},
		"taken back": {preparing, v1.VirtualMachineInstanceMigrationState{Failed: true, FailureReason: "no"},
			handoff.Lease{State: handoff.Owned, Epoch: 6, Holder: nodeA,
				Last: &handoff.Outcome{Epoch: 5, Tag: tag, Result: handoff.ResultCancelled, Message: "no"}}},
		"too late to take back": {moving, v1.VirtualMachineInstanceMigrationState{Failed: true}, moving},
	} {
		t.Run(name, func(t *testing.T) {
			vmi := &v1.VirtualMachineInstance{Status: migrating(tt.state)}
			if err := handoff.Put(vmi, tt.lease); err != nil {
				t.Fatal(err)
			}
			got, err := handoff.Of(vmi)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Fatalf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestPutAndOfAreInverse(t *testing.T) {
	vmi := &v1.VirtualMachineInstance{}
	want := handoff.Lease{State: handoff.Owned, Epoch: 7, Holder: `node "quoted" <&>`,
		Last: &handoff.Outcome{Epoch: 6, Tag: tag, Result: handoff.ResultMoved, Message: "ünïcode\n"}}
	if err := handoff.Put(vmi, want); err != nil {
		t.Fatal(err)
	}
	got, err := handoff.Of(vmi)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Fatalf("(-want +got):\n%s", diff)
	}
}

func TestOfRefusesAnAnnotationThatIsNoLease(t *testing.T) {
	vmi := &v1.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{
		Namespace: "ns", Name: "guest", Annotations: map[string]string{handoff.Annotation: "{"}}}
	_, err := handoff.Of(vmi)
	if err == nil || !strings.Contains(err.Error(), "ns/guest") || !strings.Contains(err.Error(), handoff.Annotation) {
		t.Fatalf("error %v, want one that names object and annotation", err)
	}
}

func ExampleStep() {
	var lease handoff.Lease
	for _, e := range []handoff.Event{
		{Kind: handoff.Offer, Node: "node-a"},
		{Kind: handoff.Accept, Node: "node-a", Epoch: 1},
		{Kind: handoff.Accept, Node: "node-b", Epoch: 1},
	} {
		next, err := handoff.Step(lease, e, now)
		fmt.Printf("%s by %s: %s epoch=%d holder=%s refused=%t\n", e.Kind, e.Node, next.State, next.Epoch, next.Holder, err != nil)
		lease = next
	}
	// Output:
	// Offer by node-a: Offered epoch=1 holder=node-a refused=false
	// Accept by node-a: Owned epoch=1 holder=node-a refused=false
	// Accept by node-b: Owned epoch=1 holder=node-a refused=true
}
