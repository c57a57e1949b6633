// SPDX-License-Identifier: Apache-2.0

package handoff_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/handoff"
)

func TestOf_StockKubeVirt(t *testing.T) {
	started := metav1.NewTime(now)
	onA := map[string]string{v1.NodeNameLabel: nodeA}
	for name, tt := range map[string]struct {
		labels map[string]string
		status v1.VirtualMachineInstanceStatus
		want   handoff.Lease
	}{
		"not placed":       {nil, v1.VirtualMachineInstanceStatus{Phase: v1.Scheduling}, handoff.Lease{}},
		"handed over":      {onA, v1.VirtualMachineInstanceStatus{Phase: v1.Scheduled}, handoff.Lease{State: handoff.Offered, Holder: nodeA, Cause: handoff.CauseStock}},
		"running":          {onA, v1.VirtualMachineInstanceStatus{Phase: v1.Running}, handoff.Lease{State: handoff.Owned, Holder: nodeA, Cause: handoff.CauseStock}},
		"label lost":       {nil, v1.VirtualMachineInstanceStatus{Phase: v1.Running, NodeName: nodeA}, handoff.Lease{State: handoff.Owned, Holder: nodeA, Cause: handoff.CauseStock}},
		"ended":            {onA, v1.VirtualMachineInstanceStatus{Phase: v1.Succeeded}, handoff.Lease{State: handoff.Released, Cause: handoff.CauseStock}},
		"target preparing": {onA, migrating(v1.VirtualMachineInstanceMigrationState{}), inMove(handoff.Preparing)},
		"target ready":     {onA, migrating(v1.VirtualMachineInstanceMigrationState{TargetNodeAddress: "10.0.0.2"}), inMove(handoff.Prepared)},
		"moving":           {onA, migrating(v1.VirtualMachineInstanceMigrationState{TargetNodeAddress: "10.0.0.2", StartTimestamp: &started}), inMove(handoff.Moving)},
		"moved before":     {onA, migrating(v1.VirtualMachineInstanceMigrationState{Completed: true}), handoff.Lease{State: handoff.Owned, Holder: nodeA, Cause: handoff.CauseStock}},
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
	l := handoff.Lease{State: s, Holder: nodeA, Target: nodeB, Tag: tag, Cause: handoff.CauseStock,
		Open: []handoff.Command{command(handoff.CommandMigrateIn, 0, nodeB, tag)}}
	if s == handoff.Moving {
		l.Open = append(l.Open, command(handoff.CommandMigrateOut, 0, nodeA, tag))
	}
	return l
}

func TestOf_StockMigrationWithLease(t *testing.T) {
	own := owned(t)
	asked := own
	asked.State, asked.Epoch, asked.Target, asked.Tag, asked.Cause = handoff.Preparing, 2, nodeB, tag, handoff.CauseStock
	asked.Open = []handoff.Command{command(handoff.CommandMigrateIn, 2, nodeB, tag)}
	preparing := lead(t, own, ev(handoff.Prepare, nodeB))
	takenBack := own
	takenBack.Epoch, takenBack.Cause = 3, handoff.CauseStock
	takenBack.Outcomes = append(own.Outcomes[:1:1], outcome(handoff.CommandMigrateIn, 2, tag, handoff.ResultCancelled, "no"))
	before := lead(t, preparing, ev(handoff.Cancel, ""))
	starting := lead(t, handoff.Lease{}, ev(handoff.Offer, nodeA), ev(handoff.Accept, nodeA))
	for name, tt := range map[string]struct {
		lease handoff.Lease
		state v1.VirtualMachineInstanceMigrationState
		want  handoff.Lease
	}{
		"asked for":             {own, v1.VirtualMachineInstanceMigrationState{}, asked},
		"asked for too early":   {starting, v1.VirtualMachineInstanceMigrationState{}, starting},
		"asked for and refused": {before, v1.VirtualMachineInstanceMigrationState{}, before},
		"ended":                 {own, v1.VirtualMachineInstanceMigrationState{Completed: true}, own},
		"by another cluster":    {own, v1.VirtualMachineInstanceMigrationState{TargetState: reachedAt("192.0.2.9:9185")}, own},
		"taken back":            {preparing, v1.VirtualMachineInstanceMigrationState{Failed: true, FailureReason: "no"}, takenBack},
		"too late to take back": {moving(t), v1.VirtualMachineInstanceMigrationState{Failed: true}, moving(t)},
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

func TestOf_StockNodeAgentStarted(t *testing.T) {
	for name, node := range map[string]string{"where it was offered": nodeA, "where it was migrated to": nodeB} {
		t.Run(name, func(t *testing.T) {
			vmi := &v1.VirtualMachineInstance{Status: v1.VirtualMachineInstanceStatus{Phase: v1.Running}}
			if err := handoff.Put(vmi, lead(t, handoff.Lease{}, ev(handoff.Offer, nodeA))); err != nil {
				t.Fatal(err)
			}
			vmi.Status.NodeName = node
			got, err := handoff.Of(vmi)
			want := handoff.Lease{State: handoff.Owned, Epoch: 1, Holder: node, Cause: handoff.CauseStock}
			if err != nil || !got.Equal(want) || got.MayStart(node) {
				t.Errorf("%+v, %v; want %+v", got, err, want)
			}
		})
	}
}

func TestPut_KubeVirtLabels(t *testing.T) {
	type marks struct{ Label, Status, Target string }
	offered := lead(t, handoff.Lease{}, ev(handoff.Offer, nodeA))
	for name, tt := range map[string]struct {
		lease handoff.Lease
		want  marks
	}{
		"offered":   {offered, marks{nodeA, nodeA, ""}},
		"withdrawn": {lead(t, offered, ev(handoff.Withdraw, "")), marks{}},
		"owned":     {owned(t), marks{nodeA, nodeA, ""}},
		"moving":    {moving(t), marks{nodeA, nodeA, nodeB}},
		"arrived":   {lead(t, moving(t), ev(handoff.TakeOver, nodeB)), marks{nodeB, nodeB, ""}},
		"cancelled": {lead(t, prepared(t), ev(handoff.Cancel, "")), marks{nodeA, nodeA, ""}},
		"leaving":   {lead(t, owned(t), ev(handoff.Prepare, handoff.Elsewhere)), marks{nodeA, nodeA, ""}},
		"released":  {lead(t, owned(t), ev(handoff.Release, nodeA)), marks{"before", "before", ""}},
	} {
		t.Run(name, func(t *testing.T) {
			vmi := &v1.VirtualMachineInstance{Status: v1.VirtualMachineInstanceStatus{NodeName: "before"}}
			vmi.Labels = map[string]string{v1.NodeNameLabel: "before", v1.MigrationTargetNodeNameLabel: "before"}
			if err := handoff.Put(vmi, tt.lease); err != nil {
				t.Fatal(err)
			}
			got := marks{vmi.Labels[v1.NodeNameLabel], vmi.Status.NodeName, vmi.Labels[v1.MigrationTargetNodeNameLabel]}
			if got != tt.want {
				t.Errorf("got %+v, want %+v", got, tt.want)
			}
		})
	}
}

func reachedAt(address string) *v1.VirtualMachineInstanceMigrationTargetState {
	t := &v1.VirtualMachineInstanceMigrationTargetState{}
	t.SyncAddress = &address
	return t
}

// TestOf_UnrelatedMigrationState leaves the stored lease as it is.
func TestOf_UnrelatedMigrationState(t *testing.T) {
	preparing := lead(t, owned(t), ev(handoff.Prepare, nodeB))
	another, unnamed := migrating(v1.VirtualMachineInstanceMigrationState{Failed: true}), migrating(v1.VirtualMachineInstanceMigrationState{})
	another.MigrationState.MigrationUID, unnamed.MigrationState.MigrationUID = "other", ""
	for name, tt := range map[string]struct {
		lease  handoff.Lease
		status v1.VirtualMachineInstanceStatus
	}{
		"never migrated":                 {owned(t), v1.VirtualMachineInstanceStatus{Phase: v1.Running, NodeName: nodeA}},
		"a migration without a name":     {owned(t), unnamed},
		"the migration is under way":     {preparing, migrating(v1.VirtualMachineInstanceMigrationState{})},
		"another migration has failed":   {preparing, another},
		"another one, target is ready":   {lead(t, preparing, ev(handoff.Ready, nodeB)), another},
		"asked for, a node has answered": {owned(t), migrating(v1.VirtualMachineInstanceMigrationState{TargetNodeAddress: "10.0.0.2"})},
	} {
		t.Run(name, func(t *testing.T) {
			vmi := &v1.VirtualMachineInstance{Status: tt.status}
			if err := handoff.Put(vmi, tt.lease); err != nil {
				t.Fatal(err)
			}
			got, err := handoff.Of(vmi)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.lease, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}
