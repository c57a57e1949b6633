// SPDX-License-Identifier: Apache-2.0

package evacuation

import (
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/migration"
)

// updateCase is a VMI in a cluster that may migrate and evict.
type updateCase struct {
	guest    []func(*Candidate)
	kubevirt func(*v1.KubeVirt)
	edit     func(*Workloads)
	verb     Verb
	reason   migration.Reason
	says     string
	outdated int
	priority v1.MigrationPriority
	volumes  string // the value of the label of migrations that move volumes
	cancels  []string
	pod      string
	at       time.Duration
}

func image(name string) func(*Candidate) {
	return is(func(vmi *v1.VirtualMachineInstance) { vmi.Status.LauncherContainerImageVersion = name })
}

var (
	old        = image("example.test/virt-launcher:1")
	cpu        = says(v1.VirtualMachineInstanceVCPUChange, corev1.ConditionFalse, time.Minute)
	newMemory  = says(v1.VirtualMachineInstanceMemoryChange, corev1.ConditionTrue, time.Minute)
	required   = says(v1.VirtualMachineInstanceMigrationRequired, corev1.ConditionTrue, time.Minute)
	newVolumes = says(v1.VirtualMachineInstanceVolumesChange, corev1.ConditionTrue, time.Minute)
	testAborts = func(g *Candidate) { g.VMI.Annotations[v1.WorkloadUpdateMigrationAbortionAnnotation] = "" }
	forChange  = updatesWorkload(v1.PriorityUserTriggered)
	forImage   = updatesWorkload(v1.PrioritySystemCritical)
)

func named(name string) func(*Candidate) {
	return is(func(vmi *v1.VirtualMachineInstance) { vmi.Name = name })
}

func methods(m ...v1.WorkloadUpdateMethod) func(*v1.KubeVirt) {
	return func(kv *v1.KubeVirt) { kv.Spec.WorkloadUpdateStrategy.WorkloadUpdateMethods = m }
}

func migratedVolumes(status corev1.ConditionStatus, others ...corev1.PersistentVolumeAccessMode) func(*Candidate) {
	return is(func(vmi *v1.VirtualMachineInstance) {
		vmi.Status.MigratedVolumes = []v1.StorageMigratedVolumeInfo{{VolumeName: "root"}}
		vmi.Status.VolumeStatus = []v1.VolumeStatus{
			{Name: "cloudinit"},
			{Name: "root", PersistentVolumeClaimInfo: &v1.PersistentVolumeClaimInfo{AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}}},
			{Name: "data", PersistentVolumeClaimInfo: &v1.PersistentVolumeClaimInfo{AccessModes: others}},
		}
		g := Candidate{VMI: vmi}
		says(v1.VirtualMachineInstanceIsStorageLiveMigratable, status, 0)(&g)
	})
}

var updateCases = map[string]updateCase{
	"as it should be":    {reason: reasonNotAsked},
	"image not known":    {guest: []func(*Candidate){image("")}, reason: reasonNotAsked},
	"outdated":           {guest: []func(*Candidate){old}, verb: Create, reason: reasonUpdating, says: "virt-launcher:1 instead of", outdated: 1, priority: v1.PrioritySystemCritical},
	"CPUs change":        {guest: []func(*Candidate){cpu}, verb: Create, reason: reasonUpdating, says: "HotVCPUChange", outdated: 1, priority: v1.PriorityUserTriggered},
	"memory changes":     {guest: []func(*Candidate){newMemory}, verb: Create, reason: reasonUpdating, says: "HotMemoryChange", outdated: 1, priority: v1.PriorityUserTriggered},
	"migration required": {guest: []func(*Candidate){required}, verb: Create, reason: reasonUpdating, says: "MigrationRequired", outdated: 1, priority: v1.PriorityUserTriggered},
	"memory has changed": {guest: []func(*Candidate){says(v1.VirtualMachineInstanceMemoryChange, corev1.ConditionFalse, 0)}, reason: reasonNotAsked},
	"migration is not required yet": {
		guest: []func(*Candidate){says(v1.VirtualMachineInstanceMigrationRequired, corev1.ConditionFalse, 0)}, reason: reasonNotAsked,
	},
	"outdated, and CPUs change": {guest: []func(*Candidate){old, cpu}, verb: Create, reason: reasonUpdating, outdated: 1, priority: v1.PriorityUserTriggered},
	"S14/119 volumes of a guest with 64 characters": {
		guest: []func(*Candidate){newVolumes, named(strings.Repeat("a", 64))},
		verb:  Create, reason: reasonUpdating, outdated: 1, priority: v1.PriorityUserTriggered, volumes: string(vmiUID),
	},
	"S14/119 volumes of a guest with 63 characters": {
		guest: []func(*Candidate){newVolumes, named(strings.Repeat("a", 63))},
		verb:  Create, reason: reasonUpdating, outdated: 1, priority: v1.PriorityUserTriggered, volumes: strings.Repeat("a", 63),
	},
	"volumes that all move": {
		guest: []func(*Candidate){newVolumes, notMigratable, migratedVolumes(corev1.ConditionTrue, corev1.ReadWriteMany)},
		verb:  Create, reason: reasonUpdating, outdated: 1, priority: v1.PriorityUserTriggered, volumes: "guest",
	},
	"volumes that do not all move": {
		guest: []func(*Candidate){newVolumes, notMigratable, migratedVolumes(corev1.ConditionTrue, corev1.ReadWriteOnce)}, kubevirt: methods(v1.WorkloadUpdateMethodLiveMigrate),
		reason: reasonNoUpdateMethod, outdated: 1,
	},
	"volumes that cannot move": {
		guest: []func(*Candidate){newVolumes, notMigratable, migratedVolumes(corev1.ConditionFalse, corev1.ReadWriteMany)}, kubevirt: methods(v1.WorkloadUpdateMethodLiveMigrate),
		reason: reasonNoUpdateMethod, outdated: 1,
	},
	"not running": {guest: []func(*Candidate){old, is(func(vmi *v1.VirtualMachineInstance) { vmi.Status.Phase = v1.Scheduled })}, reason: ReasonNotRunning},
	"deleted":     {guest: []func(*Candidate){old, is(func(vmi *v1.VirtualMachineInstance) { vmi.DeletionTimestamp = &metav1.Time{Time: start} })}, reason: migration.ReasonGuestDeleted},
	"own writes are not seen": {
		guest: []func(*Candidate){old, func(g *Candidate) { g.Pending = "creation of m" }}, reason: reasonCacheBehind, outdated: 1,
	},
	"own writes about a guest that is as it should be": {
		guest: []func(*Candidate){func(g *Candidate) { g.Pending = "creation of m" }}, reason: reasonCacheBehind,
	},
	"a migration waits":  {guest: []func(*Candidate){old, has("m", v1.MigrationPending, 0)}, reason: reasonMigrationExists, outdated: 1},
	"it moves":           {guest: []func(*Candidate){old, state("m", hasStarted)}, reason: migration.ReasonMoving, outdated: 1},
	"it moves, changing": {guest: []func(*Candidate){cpu, state("m", hasStarted)}, reason: reasonNotAsked},
	"two Pods":           {guest: []func(*Candidate){old, hasPod("other", corev1.PodRunning)}, reason: ReasonActivePods, outdated: 1},
	"12.27 it has left":  {guest: []func(*Candidate){old, has("m", v1.MigrationSucceeded, time.Second, moved(sourceNode, targetNode))}, reason: reasonCacheBehind, outdated: 1, at: behindFor - time.Second},

	"S14/116 deployment IDs differ": {
		guest:    []func(*Candidate){old},
		kubevirt: func(kv *v1.KubeVirt) { kv.Status.TargetDeploymentID = "next" }, reason: reasonNotDeployed, outdated: -1,
	},
	"S14/116 not deployed": {
		guest:    []func(*Candidate){old},
		kubevirt: func(kv *v1.KubeVirt) { kv.Status.Phase = v1.KubeVirtPhaseDeploying }, reason: reasonNotDeployed, says: "Deploying", outdated: -1,
	},
	"no KubeVirt": {guest: []func(*Candidate){old}, edit: func(w *Workloads) { w.KubeVirt = nil }, reason: reasonNotDeployed, outdated: -1},
	"nobody deploys KubeVirt": {
		guest: []func(*Candidate){old}, kubevirt: func(kv *v1.KubeVirt) { kv.Status = v1.KubeVirtStatus{} },
		verb: Create, reason: reasonUpdating, outdated: 1, priority: v1.PrioritySystemCritical,
	},
	"no method":        {guest: []func(*Candidate){old}, kubevirt: methods(), reason: reasonNoUpdateMethod, says: "LiveMigrate is not among", outdated: 1},
	"no method for it": {guest: []func(*Candidate){old, notMigratable}, kubevirt: methods(v1.WorkloadUpdateMethodLiveMigrate), reason: reasonNoUpdateMethod, says: "Evict is not among", outdated: 1},

	"S14/118 the change is gone, running": {
		guest: []func(*Candidate){has("m", v1.MigrationRunning, 0, forChange), state("m", hasStarted)}, verb: Cancel, reason: reasonNotAsked, cancels: []string{"m"},
	},
	"S14/118 the change is gone, the target is ready": {
		guest: []func(*Candidate){has("m", v1.MigrationRunning, 0, forChange), state("m", hasArrived)}, reason: reasonNotAsked,
	},
	"S14/118 the change is gone, final": {guest: []func(*Candidate){has("m", v1.MigrationFailed, 0, forChange)}, reason: reasonNotAsked},
	"S14/118 the change is gone, the target of an earlier move was ready": {
		guest: []func(*Candidate){has("m", v1.MigrationPending, 0, forChange), state("before", hasCompleted)}, verb: Cancel, reason: reasonNotAsked, cancels: []string{"m"},
	},
	"S14/118 the change is gone, but not called for by us": {guest: []func(*Candidate){has("m", v1.MigrationRunning, 0)}, reason: reasonNotAsked},
	"S14/118 the change is gone, called off before":        {guest: []func(*Candidate){has("m", v1.MigrationRunning, 0, forChange, deleted)}, reason: reasonNotAsked},
	"S14/118 the change is there":                          {guest: []func(*Candidate){cpu, has("m", v1.MigrationPending, 0, forChange)}, reason: reasonMigrationExists, outdated: 1},
	"the image is as it should be, before it was moved": {
		guest: []func(*Candidate){has("m", v1.MigrationPending, 0, forImage)}, verb: Cancel, reason: reasonNotAsked, cancels: []string{"m"},
	},
	"the image is not known while it is moved": {guest: []func(*Candidate){image(""), has("m", v1.MigrationRunning, 0, forImage)}, reason: reasonNotAsked},
	"tests call it off": {
		guest: []func(*Candidate){cpu, testAborts, has("m", v1.MigrationRunning, 0, forChange), state("m", hasArrived)},
		verb:  Cancel, reason: reasonNotAsked, cancels: []string{"m"},
	},
	"tests do not want it": {guest: []func(*Candidate){cpu, testAborts}, reason: reasonNotAsked},

	"cooldown: a new image": {
		guest:  []func(*Candidate){old, has("m", v1.MigrationSucceeded, time.Minute, forImage, moved("other", sourceNode))},
		reason: ReasonCooldown, outdated: 1, at: 4 * time.Minute,
	},
	"cooldown: another Pod is needed again": {
		guest:  []func(*Candidate){says(v1.VirtualMachineInstanceMigrationRequired, corev1.ConditionTrue, 0), has("m", v1.MigrationSucceeded, time.Minute, forChange, moved("other", sourceNode))},
		reason: ReasonCooldown, outdated: 1, at: 4 * time.Minute,
	},
	"cooldown: a wish of before the move": {
		guest:  []func(*Candidate){cpu, has("m", v1.MigrationSucceeded, time.Minute, forChange, moved("other", sourceNode))},
		reason: ReasonCooldown, outdated: 1, at: 4 * time.Minute,
	},
	"cooldown: not for a new wish": {
		guest: []func(*Candidate){cpu, has("m", v1.MigrationSucceeded, 2*time.Minute, forChange, moved("other", sourceNode))},
		verb:  Create, reason: reasonUpdating, outdated: 1, priority: v1.PriorityUserTriggered,
	},
	"12.20 failed for good": {
		guest:  []func(*Candidate){old, has("m", v1.MigrationFailed, time.Minute, forImage, failedFor(migration.ReasonNotMigratable, circumstances(guestWith(old).VMI, "fleet")))},
		reason: ReasonUnchanged, outdated: 1, at: staticRetry - time.Minute,
	},

	"S14/115 as many run as may": {guest: []func(*Candidate){old}, edit: func(w *Workloads) { w.Running = 5 }, reason: reasonUpdateLimit, says: "at most 5 migrations for updates at a time", outdated: 1},
	"S14/115 a change waits in the queue": {
		guest: []func(*Candidate){cpu}, edit: func(w *Workloads) { w.Running = 5 }, verb: Create, reason: reasonUpdating, outdated: 1, priority: v1.PriorityUserTriggered,
	},

	"evicted": {guest: []func(*Candidate){old, notMigratable, strategy(ifPossible)}, verb: EvictPod, reason: reasonUpdating, outdated: 1, pod: "pod", at: time.Minute},
	"13.29 no Pod to evict": {
		guest: []func(*Candidate){old, notMigratable, strategy(ifPossible), func(g *Candidate) { g.Pods = nil }}, reason: migration.ReasonWaitingForSourcePod, outdated: 1,
	},
	"13.29 the Pod is on another node": {
		guest:  []func(*Candidate){old, notMigratable, strategy(ifPossible), func(g *Candidate) { g.Pods[0].Spec.NodeName = targetNode }},
		reason: migration.ReasonWaitingForSourcePod, outdated: 1,
	},
	"the Pod is going": {
		guest:  []func(*Candidate){old, notMigratable, strategy(ifPossible), func(g *Candidate) { g.Pods[0].DeletionTimestamp = &metav1.Time{Time: start} }},
		reason: reasonEvictionUnderWay, outdated: 1,
	},
	"evicted before":           {guest: []func(*Candidate){old, notMigratable, strategy(v1.EvictionStrategyExternal), marked(sourceNode)}, reason: reasonEvictionUnderWay, outdated: 1},
	"its strategy refuses":     {guest: []func(*Candidate){old, notMigratable}, reason: reasonEvictionRefused, outdated: 1},
	"evicted where none moves": {guest: []func(*Candidate){old}, kubevirt: methods(v1.WorkloadUpdateMethodEvict), verb: EvictPod, reason: reasonUpdating, outdated: 1, pod: "pod", at: time.Minute},
	"the last batch was a moment ago": {
		guest: []func(*Candidate){old, notMigratable, strategy(ifPossible)}, edit: func(w *Workloads) { w.LastBatch = start.Add(-59 * time.Second) },
		reason: reasonEvictionBatch, outdated: 1, says: "10 VMIs are evicted every 1m0s", at: time.Second,
	},
	"batches without an interval": {
		guest: []func(*Candidate){old, notMigratable, strategy(ifPossible)}, verb: EvictPod, reason: reasonUpdating, outdated: 1, pod: "pod", at: time.Second,
		kubevirt: func(kv *v1.KubeVirt) { kv.Spec.WorkloadUpdateStrategy.BatchEvictionInterval = &metav1.Duration{} },
	},
	"batches of none": {
		guest: []func(*Candidate){old, notMigratable, strategy(ifPossible)}, reason: reasonEvictionBatch, outdated: 1,
		kubevirt: func(kv *v1.KubeVirt) { none := -1; kv.Spec.WorkloadUpdateStrategy.BatchEvictionSize = &none },
	},
}

func workloads(guests ...Candidate) Workloads {
	return Workloads{
		KubeVirt: &v1.KubeVirt{
			Spec: v1.KubeVirtSpec{WorkloadUpdateStrategy: v1.KubeVirtWorkloadUpdateStrategy{
				WorkloadUpdateMethods: []v1.WorkloadUpdateMethod{v1.WorkloadUpdateMethodLiveMigrate, v1.WorkloadUpdateMethodEvict},
			}},
			Status: v1.KubeVirtStatus{Phase: v1.KubeVirtPhaseDeployed, ObservedDeploymentID: "id", TargetDeploymentID: "id"},
		},
		LauncherImage: currentImage, VMIs: guests, LastBatch: start.Add(-time.Hour), Fleet: "fleet", Config: migration.Config{}.WithDefaults(),
	}
}

func TestUpdateWorkloads(t *testing.T) {
	for name, tc := range updateCases {
		t.Run(name, func(t *testing.T) {
			w := workloads(guestWith(tc.guest...))
			if tc.kubevirt != nil {
				tc.kubevirt(w.KubeVirt)
			}
			if tc.edit != nil {
				tc.edit(&w)
			}
			out := UpdateWorkloads(w, start)
			if out.Known != (tc.outdated >= 0) || out.Known && out.Outdated != tc.outdated {
				t.Errorf("%d outdated, known: %t", out.Outdated, out.Known)
			}
			checkUpdate(t, out.Standings[0], tc)
		})
	}
}

func checkUpdate(t *testing.T, s Standing, want updateCase) {
	t.Helper()
	checkStanding(t, Standing{Verb: s.Verb, Reason: s.Reason, Message: s.Message, Cancel: s.Cancel, At: s.At, Migration: evacuationLike(s.Migration)}, evacuationCase{
		verb: want.verb, reason: want.reason, says: want.says, cancels: want.cancels, at: want.at, priority: want.priority,
	})
	if s.Verb == Create {
		m := s.Migration
		if _, ours := m.Annotations[v1.WorkloadUpdateMigrationAnnotation]; !ours || m.Labels[v1.VolumesUpdateMigration] != want.volumes {
			t.Errorf("creates %+v", m.ObjectMeta)
		}
	}
	if pod := s.Pod; (pod == nil) != (want.pod == "") || pod != nil && pod.Name != want.pod {
		t.Errorf("evicts %+v", pod)
	}
}

// evacuationLike is the migration as checkStanding looks at it.
func evacuationLike(m *v1.VirtualMachineInstanceMigration) *v1.VirtualMachineInstanceMigration {
	if m == nil {
		return nil
	}
	m = m.DeepCopy()
	evacuates(sourceNode)(m)
	m.Spec.VMIName = "guest"
	return m
}

// verbs counts what is done.
func verbs(all []Standing) map[Verb]int {
	n := map[Verb]int{}
	for _, s := range all {
		n[s.Verb]++
	}
	return n
}

// outdatedGuests are so many VMIs with an old image.
func outdatedGuests(n int) (all []Candidate) {
	for i := range n {
		all = append(all, guestWith(old, named(string(rune('a'+i)))))
	}
	return all
}

var limitCases = map[string]struct {
	guests  []Candidate
	running int
	creates int
}{
	"S14/113 those of others wait": {guests: outdatedGuests(1), creates: 1},
	"S14/115 four run":             {guests: outdatedGuests(3), running: 4, creates: 1},
	"S14/115 none runs":            {guests: outdatedGuests(8), creates: 5},
	"own ones wait": {
		guests: append(outdatedGuests(8), guestWith(old, named("z"), has("m", v1.MigrationPending, 0, forImage))), running: 3, creates: 1,
	},
	"own ones are not seen yet": {guests: slices.Concat(outdatedGuests(8), unseen(guestWith(old, named("x")), guestWith(old, named("y"), has("m", v1.MigrationPending, 0, forImage)))), running: 1, creates: 2},
	"more run than may":         {guests: outdatedGuests(3), running: 7},
}

// unseen are VMIs whose last writes are not observed yet.
func unseen(all ...Candidate) []Candidate {
	for i := range all {
		all[i].Pending = "creation of a migration"
	}
	return all
}

func TestUpdates_Limit(t *testing.T) {
	for name, tc := range limitCases {
		t.Run(name, func(t *testing.T) {
			w := workloads(tc.guests...)
			w.Running = tc.running
			if got := verbs(UpdateWorkloads(w, start).Standings)[Create]; got != tc.creates {
				t.Errorf("%d created, want %d", got, tc.creates)
			}
		})
	}
}

func TestUpdates_Order(t *testing.T) {
	failed := has("m", v1.MigrationFailed, time.Second, forImage)
	w := workloads(
		guestWith(old, named("a"), failed), guestWith(old, named("b")), guestWith(old, named("c")),
		guestWith(cpu, named("d")), guestWith(newMemory, named("e")),
	)
	w.Running = 2
	var made []string
	for _, s := range UpdateWorkloads(w, start).Standings {
		if s.Verb == Create {
			made = append(made, s.VMI.Name)
		}
	}
	if !slices.Equal(made, []string{"b", "d", "e"}) {
		t.Errorf("updates %v: those with changes, then those that have not failed", made)
	}
}

func TestEvictionBatches(t *testing.T) {
	var guests []Candidate
	for _, name := range []string{"a", "b", "c", "d"} {
		guests = append(guests, guestWith(old, notMigratable, strategy(ifPossible), named(name), is(func(vmi *v1.VirtualMachineInstance) { vmi.UID = types.UID("uid-" + name) }),
			func(g *Candidate) { g.Pods[0].OwnerReferences[0].UID = g.VMI.UID }))
	}
	w := workloads(guests...)
	two, second := 2, metav1.Duration{Duration: time.Second}
	w.KubeVirt.Spec.WorkloadUpdateStrategy.BatchEvictionSize, w.KubeVirt.Spec.WorkloadUpdateStrategy.BatchEvictionInterval = &two, &second
	w.Refused = map[types.UID]time.Time{"uid-a": start.Add(-time.Second), "uid-b": start.Add(-time.Minute)}
	w.LastBatch = start.Add(-second.Duration)
	out := UpdateWorkloads(w, start)
	for _, s := range out.Standings {
		if wants := s.VMI.Name == "c" || s.VMI.Name == "d"; (s.Verb == EvictPod) != wants {
			t.Errorf("VMI %s: %+v", s.VMI.Name, s)
		}
	}
	if at := Soonest(out.Standings); !at.Equal(start.Add(second.Duration)) {
		t.Errorf("the next batch is due at %v", at)
	}
}
