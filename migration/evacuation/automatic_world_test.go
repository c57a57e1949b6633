// SPDX-License-Identifier: Apache-2.0

package evacuation

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/internal/launcherpod"
	"github.com/virtloom/virtloom/migration"
)

var start = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

const (
	sourceNode = "source"
	targetNode = "target"
	vmiUID     = types.UID("guest-uid")
)

func newMigration(name string, uid types.UID) *v1.VirtualMachineInstanceMigration {
	return &v1.VirtualMachineInstanceMigration{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: uid, CreationTimestamp: metav1.NewTime(start)},
		Spec:       v1.VirtualMachineInstanceMigrationSpec{VMIName: "guest"},
	}
}

const currentImage = "example.test/virt-launcher:2"

// guestWith is a VMI that runs on the source node in one Pod of the current image and can be migrated.
func guestWith(edits ...func(*Candidate)) Candidate {
	strategy := v1.EvictionStrategyLiveMigrate
	g := Candidate{VMI: &v1.VirtualMachineInstance{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "guest", UID: vmiUID, Annotations: map[string]string{}},
		Spec:       v1.VirtualMachineInstanceSpec{EvictionStrategy: &strategy},
		Status:     v1.VirtualMachineInstanceStatus{Phase: v1.Running, NodeName: sourceNode, LauncherContainerImageVersion: currentImage},
	}}
	says(v1.VirtualMachineInstanceIsMigratable, corev1.ConditionTrue, 0)(&g)
	hasPod("pod", corev1.PodRunning)(&g)
	for _, edit := range edits {
		edit(&g)
	}
	return g
}

// says gives the VMI a condition, in place of one of that type, since some time before now.
func says(t v1.VirtualMachineInstanceConditionType, status corev1.ConditionStatus, since time.Duration) func(*Candidate) {
	return func(g *Candidate) {
		silent(t)(g)
		g.VMI.Status.Conditions = append(g.VMI.Status.Conditions, v1.VirtualMachineInstanceCondition{
			Type: t, Status: status, Reason: "Some", Message: "some reason", LastTransitionTime: metav1.NewTime(start.Add(-since)),
		})
	}
}

func silent(t v1.VirtualMachineInstanceConditionType) func(*Candidate) {
	return func(g *Candidate) {
		var kept []v1.VirtualMachineInstanceCondition
		for _, c := range g.VMI.Status.Conditions {
			if c.Type != t {
				kept = append(kept, c)
			}
		}
		g.VMI.Status.Conditions = kept
	}
}

func hasPod(name string, phase corev1.PodPhase, edits ...func(*corev1.Pod)) func(*Candidate) {
	return func(g *Candidate) {
		yes := true
		p := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: "ns", Name: name, Labels: map[string]string{v1.AppLabel: launcherpod.LauncherApp},
				OwnerReferences: []metav1.OwnerReference{{Kind: "VirtualMachineInstance", Name: "guest", UID: vmiUID, Controller: &yes}},
			},
			Spec: corev1.PodSpec{NodeName: sourceNode}, Status: corev1.PodStatus{Phase: phase},
		}
		for _, edit := range edits {
			edit(p)
		}
		g.Pods = append(g.Pods, p)
	}
}

// going has a Pod be deleted on a node.
func going(node string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		now := metav1.NewTime(start)
		p.DeletionTimestamp, p.Spec.NodeName = &now, node
	}
}

// has gives the VMI a migration of the phase it has entered some time before now.
func has(name string, phase v1.VirtualMachineInstanceMigrationPhase, since time.Duration, edits ...func(*v1.VirtualMachineInstanceMigration)) func(*Candidate) {
	return func(g *Candidate) {
		m := newMigration(name, types.UID(name+"-uid"))
		at := metav1.NewTime(start.Add(-since))
		m.CreationTimestamp = metav1.NewTime(at.Add(-time.Minute))
		m.Status.Phase = phase
		m.Status.PhaseTransitionTimestamps = []v1.VirtualMachineInstanceMigrationPhaseTransitionTimestamp{{Phase: phase, PhaseTransitionTimestamp: at}}
		for _, edit := range edits {
			edit(m)
		}
		g.Migrations = append(g.Migrations, m)
	}
}

func evacuates(node string) func(*v1.VirtualMachineInstanceMigration) {
	return func(m *v1.VirtualMachineInstanceMigration) {
		metav1.SetMetaDataAnnotation(&m.ObjectMeta, v1.EvacuationMigrationAnnotation, node)
	}
}

func forBalance(m *v1.VirtualMachineInstanceMigration) {
	m.Spec.Priority = priority(v1.PrioritySystemMaintenance)
}

func updatesWorkload(p v1.MigrationPriority) func(*v1.VirtualMachineInstanceMigration) {
	return func(m *v1.VirtualMachineInstanceMigration) {
		metav1.SetMetaDataAnnotation(&m.ObjectMeta, v1.WorkloadUpdateMigrationAnnotation, "")
		m.Spec.Priority = &p
	}
}

// moved sets the nodes of the migration, and failedFor why it failed.
func moved(from, to string) func(*v1.VirtualMachineInstanceMigration) {
	return func(m *v1.VirtualMachineInstanceMigration) {
		m.Status.MigrationState = &v1.VirtualMachineInstanceMigrationState{MigrationUID: m.UID, SourceNode: from, TargetNode: to, Completed: true}
	}
}

func failedFor(r migration.Reason, circumstances string) func(*v1.VirtualMachineInstanceMigration) {
	return func(m *v1.VirtualMachineInstanceMigration) {
		m.Status.Conditions = append(m.Status.Conditions, v1.VirtualMachineInstanceMigrationCondition{
			Type: migration.ConditionFailed, Status: corev1.ConditionTrue, Reason: string(r), Message: "as it is", LastTransitionTime: m.CreationTimestamp,
		})
		metav1.SetMetaDataAnnotation(&m.ObjectMeta, circumstancesAnnotation, circumstances)
	}
}

func deleted(m *v1.VirtualMachineInstanceMigration) {
	now := metav1.NewTime(start)
	m.DeletionTimestamp = &now
}

// state gives the VMI the migration state of a migration.
func state(name string, edit func(*v1.VirtualMachineInstanceMigrationState)) func(*Candidate) {
	return func(g *Candidate) {
		g.VMI.Status.MigrationState = &v1.VirtualMachineInstanceMigrationState{MigrationUID: types.UID(name + "-uid")}
		edit(g.VMI.Status.MigrationState)
	}
}

func hasStarted(ms *v1.VirtualMachineInstanceMigrationState) {
	now := metav1.NewTime(start)
	ms.StartTimestamp = &now
}

func hasArrived(ms *v1.VirtualMachineInstanceMigrationState) {
	hasStarted(ms)
	ms.TargetNodeDomainReadyTimestamp = ms.StartTimestamp
}

func hasCompleted(ms *v1.VirtualMachineInstanceMigrationState) {
	hasArrived(ms)
	ms.EndTimestamp, ms.Completed = ms.StartTimestamp, true
}

func is(edit func(*v1.VirtualMachineInstance)) func(*Candidate) {
	return func(g *Candidate) { edit(g.VMI) }
}

func strategy(s v1.EvictionStrategy) func(*Candidate) {
	return is(func(vmi *v1.VirtualMachineInstance) { vmi.Spec.EvictionStrategy = &s })
}

func noStrategy(g *Candidate) { g.VMI.Spec.EvictionStrategy = nil }

func runsOn(node string) func(*Candidate) {
	return is(func(vmi *v1.VirtualMachineInstance) { vmi.Status.NodeName = node })
}

func marked(node string) func(*Candidate) {
	return is(func(vmi *v1.VirtualMachineInstance) { vmi.Status.EvacuationNodeName = node })
}

func byDescheduler(g *Candidate) { g.VMI.Annotations[v1.EvictionSourceAnnotation] = SourceDescheduler }

func notMigratable(g *Candidate) {
	says(v1.VirtualMachineInstanceIsMigratable, corev1.ConditionFalse, 0)(g)
}
