// SPDX-License-Identifier: Apache-2.0

package vmi

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/internal/vmistatus"
)

var noon = time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)

// runs returns a running VMI.
func runs(changes ...func(*v1.VirtualMachineInstance)) *v1.VirtualMachineInstance {
	g := &v1.VirtualMachineInstance{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "guest", UID: "uid-1"},
		Status:     v1.VirtualMachineInstanceStatus{Phase: v1.Running, NodeName: "node-a"},
	}
	for _, c := range changes {
		c(g)
	}
	return g
}

// says adds a condition that is an hour old.
func says(t v1.VirtualMachineInstanceConditionType, s corev1.ConditionStatus, reason string) func(*v1.VirtualMachineInstance) {
	return func(g *v1.VirtualMachineInstance) {
		g.Status.Conditions = append(g.Status.Conditions, v1.VirtualMachineInstanceCondition{
			Type: t, Status: s, Reason: reason, LastTransitionTime: metav1.NewTime(noon.Add(-time.Hour)),
		})
	}
}

// outcome returns the condition after a change is applied.
func outcome(g *v1.VirtualMachineInstance, c conditionChange) string {
	g = g.DeepCopy()
	c.apply(g, noon)
	now := vmistatus.Condition(g, c.Type)
	if now == nil {
		return "none"
	}
	return string(now.Status) + "/" + now.Reason
}

func TestHotVCPUChange(t *testing.T) {
	cpu := func(c v1.CPU) func(*v1.VirtualMachineInstance) {
		return func(g *v1.VirtualMachineInstance) { g.Spec.Domain.CPU = &c }
	}
	has := func(c v1.CPUTopology) func(*v1.VirtualMachineInstance) {
		return func(g *v1.VirtualMachineInstance) { g.Status.CurrentCPUTopology = &c }
	}
	one := v1.CPUTopology{Cores: 1, Sockets: 1, Threads: 1}
	type changes = []func(*v1.VirtualMachineInstance)
	for name, tt := range map[string]struct {
		guest changes
		want  string
	}{
		"67 more sockets":            {changes{cpu(v1.CPU{Cores: 1, Sockets: 2, Threads: 1, MaxSockets: 4}), has(one)}, "True/"},
		"67 no room for any":         {changes{cpu(v1.CPU{Cores: 1, Sockets: 2, Threads: 1}), has(one)}, "none"},
		"67 the same number":         {changes{cpu(v1.CPU{Cores: 2, Sockets: 1, MaxSockets: 4}), has(v1.CPUTopology{Cores: 1, Sockets: 2, Threads: 1})}, "none"},
		"67 what is not said is one": {changes{cpu(v1.CPU{MaxSockets: 4}), has(one)}, "none"},
		"67 asked for already":       {changes{cpu(v1.CPU{Sockets: 2, MaxSockets: 4}), has(one), says(v1.VirtualMachineInstanceVCPUChange, corev1.ConditionTrue, "VCPUHotplugFailed")}, "True/VCPUHotplugFailed"},
		"67 nothing known":           {changes{cpu(v1.CPU{Sockets: 2, MaxSockets: 4})}, "none"},
		"67 no CPU in the spec":      {changes{has(one)}, "none"},
	} {
		t.Run(name, func(t *testing.T) {
			g := runs(tt.guest...)
			if got := outcome(g, hotVCPUChange(g)); got != tt.want {
				t.Errorf("got %s, want %s", got, tt.want)
			}
		})
	}
}

func TestHotMemoryChange(t *testing.T) {
	quantity := func(s string) *resource.Quantity { return ptr.To(resource.MustParse(s)) }
	memory := func(guest, most string) func(*v1.VirtualMachineInstance) {
		return func(g *v1.VirtualMachineInstance) {
			g.Spec.Domain.Memory = &v1.Memory{Guest: quantity(guest)}
			if most != "" {
				g.Spec.Domain.Memory.MaxGuest = quantity(most)
			}
		}
	}
	has := func(m v1.MemoryStatus) func(*v1.VirtualMachineInstance) {
		return func(g *v1.VirtualMachineInstance) { g.Status.Memory = &m }
	}
	type changes = []func(*v1.VirtualMachineInstance)
	for name, tt := range map[string]struct {
		guest changes
		ratio string
		want  string
		label string
	}{
		"more":                                    {guest: changes{memory("2Gi", "4Gi"), has(v1.MemoryStatus{GuestRequested: quantity("1Gi")})}, want: "True/"},
		"more, with the cluster's ratio":          {guest: changes{memory("2Gi", "4Gi"), has(v1.MemoryStatus{GuestRequested: quantity("1Gi")})}, ratio: "1.5", want: "True/", label: "1.5"},
		"the same, written differently":           {guest: changes{memory("1024Mi", "4Gi"), has(v1.MemoryStatus{GuestRequested: quantity("1Gi")})}, ratio: "1.5", want: "none"},
		"no room for any":                         {guest: changes{memory("2Gi", ""), has(v1.MemoryStatus{GuestRequested: quantity("1Gi")})}, want: "none"},
		"weakness 36: only the overhead is known": {guest: changes{memory("2Gi", "4Gi"), has(v1.MemoryStatus{MemoryOverhead: quantity("256Mi")})}, want: "none"},
		"weakness 36: what it booted with":        {guest: changes{memory("2Gi", "4Gi"), has(v1.MemoryStatus{GuestAtBoot: quantity("1Gi")})}, want: "True/"},
		"weakness 36: nothing known":              {guest: changes{memory("2Gi", "4Gi")}, want: "none"},
		"weakness 36: no memory in the spec":      {guest: changes{has(v1.MemoryStatus{GuestRequested: quantity("1Gi")})}, want: "none"},
		"one that failed is not repeated":         {guest: changes{memory("2Gi", "4Gi"), has(v1.MemoryStatus{GuestRequested: quantity("1Gi")}), says(v1.VirtualMachineInstanceMemoryChange, corev1.ConditionFalse, "Memory Hotplug Failed")}, ratio: "2", want: "False/Memory Hotplug Failed"},
	} {
		t.Run(name, func(t *testing.T) {
			g := runs(tt.guest...)
			change := hotMemoryChange(g, tt.ratio)
			if got := outcome(g, change); got != tt.want {
				t.Errorf("got %s, want %s", got, tt.want)
			}
			change.apply(g, noon)
			if got := g.Labels["kubevirt.io/memory-hotplug-overhead-ratio"]; got != tt.label {
				t.Errorf("label %q, want %q", got, tt.label)
			}
		})
	}
}

func TestVolumesChange(t *testing.T) {
	migrated := func(all ...v1.StorageMigratedVolumeInfo) func(*v1.VirtualMachineInstance) {
		return func(g *v1.VirtualMachineInstance) { g.Status.MigratedVolumes = all }
	}
	move := v1.StorageMigratedVolumeInfo{VolumeName: "disk",
		SourcePVCInfo: &v1.PersistentVolumeClaimInfo{ClaimName: "old"}, DestinationPVCInfo: &v1.PersistentVolumeClaimInfo{ClaimName: "new"}}
	volumes := func(all ...v1.VolumeSource) func(*v1.VirtualMachineInstance) {
		return func(g *v1.VirtualMachineInstance) {
			for _, s := range all {
				g.Spec.Volumes = append(g.Spec.Volumes, v1.Volume{Name: "v", VolumeSource: s})
			}
		}
	}
	claim := func(name string) v1.VolumeSource {
		return v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{
			PersistentVolumeClaimVolumeSource: corev1.PersistentVolumeClaimVolumeSource{ClaimName: name}}}
	}
	data := func(name string) v1.VolumeSource {
		return v1.VolumeSource{DataVolume: &v1.DataVolumeSource{Name: name}}
	}
	dump := v1.VolumeSource{MemoryDump: &v1.MemoryDumpVolumeSource{PersistentVolumeClaimVolumeSource: v1.PersistentVolumeClaimVolumeSource{
		PersistentVolumeClaimVolumeSource: corev1.PersistentVolumeClaimVolumeSource{ClaimName: "dump"}}}}
	type changes = []func(*v1.VirtualMachineInstance)
	for name, tt := range map[string]struct {
		guest changes
		want  string
	}{
		"a claim replaced":                          {changes{migrated(move), volumes(claim("new"))}, "True/"},
		"a DataVolume replaced":                     {changes{migrated(move), volumes(data("new"))}, "True/"},
		"a dump elsewhere":                          {changes{migrated(move), volumes(claim("old"), dump)}, "True/"},
		"not replaced yet":                          {changes{migrated(move), volumes(claim("old"), v1.VolumeSource{EmptyDisk: &v1.EmptyDiskSource{}})}, "none"},
		"nothing to migrate":                        {changes{volumes(claim("new"))}, "none"},
		"cancelled":                                 {changes{migrated(move), volumes(claim("new")), says(v1.VirtualMachineInstanceVolumesChange, corev1.ConditionFalse, "VolumesChangeCancellation")}, "False/VolumesChangeCancellation"},
		"weakness 36: an entry that names no claim": {changes{migrated(v1.StorageMigratedVolumeInfo{VolumeName: "disk"}, move), volumes(claim("old"))}, "none"},
	} {
		t.Run(name, func(t *testing.T) {
			g := runs(tt.guest...)
			change := volumesChange(g)
			if got := outcome(g, change); got != tt.want {
				t.Errorf("got %s, want %s", got, tt.want)
			}
			if change.Set != nil && change.Set.Message != "migrate volumes" {
				t.Errorf("message %q", change.Set.Message)
			}
		})
	}
}

func TestMigrationRequired(t *testing.T) {
	const (
		pending = v1.VirtualMachineInstanceReasonAutoMigrationPending
		update  = v1.VirtualMachineInstanceReasonAutoMigrationDueToLiveUpdate
		none    = "none"
		isFalse = "False/" + pending
		isTrue  = "True/" + update
		foreign = "False/of somebody else"
	)
	due, later := noon.Add(7*time.Second), noon.Add(10*time.Second)
	was := map[string]func(*v1.VirtualMachineInstance){
		none:    func(*v1.VirtualMachineInstance) {},
		isFalse: says(v1.VirtualMachineInstanceMigrationRequired, corev1.ConditionFalse, pending),
		isTrue:  says(v1.VirtualMachineInstanceMigrationRequired, corev1.ConditionTrue, update),
	}
	was[foreign] = says(v1.VirtualMachineInstanceMigrationRequired, corev1.ConditionFalse, "of somebody else")
	migration := func(m v1.VirtualMachineInstanceMigrationState) *v1.VirtualMachineInstanceMigrationState {
		m.StartTimestamp = ptr.To(metav1.NewTime(noon.Add(-time.Minute)))
		return &m
	}
	unknown, no, yes := corev1.ConditionUnknown, corev1.ConditionFalse, corev1.ConditionTrue
	for name, tt := range map[string]struct {
		was       string
		found     corev1.ConditionStatus
		due       time.Time
		migration *v1.VirtualMachineInstanceMigrationState
		want      string
		keeps     bool
		requeue   time.Time
	}{
		"68 none+Unknown":                   {was: none, found: unknown, want: none, keeps: true},
		"68 none+False":                     {was: none, found: no, due: due, want: isFalse, requeue: due},
		"68 none+False, not known until":    {was: none, found: no, want: isFalse, requeue: later},
		"68 none+True":                      {was: none, found: yes, want: isTrue},
		"68 False+False":                    {was: isFalse, found: no, due: due, want: isFalse, keeps: true, requeue: due},
		"68 True+False":                     {was: isTrue, found: no, due: due, want: isTrue, keeps: true},
		"68 False+True":                     {was: isFalse, found: yes, want: isTrue},
		"68 True+True":                      {was: isTrue, found: yes, want: isTrue, keeps: true},
		"68 False+Unknown":                  {was: isFalse, found: unknown, want: none},
		"68 True+Unknown":                   {was: isTrue, found: unknown, want: none},
		"68 none+no answer":                 {was: none, found: "", want: none, keeps: true},
		"68 False for another reason+False": {was: foreign, found: no, due: due, want: isFalse, requeue: due},
		"70 the migration is complete":      {was: isTrue, found: unknown, migration: migration(v1.VirtualMachineInstanceMigrationState{Completed: true}), want: none},
		"70 migrating: True stays":          {was: isTrue, found: unknown, migration: migration(v1.VirtualMachineInstanceMigrationState{}), want: isTrue, keeps: true},
		"70 migrating: False stays":         {was: isFalse, found: yes, migration: migration(v1.VirtualMachineInstanceMigrationState{}), want: isFalse, keeps: true},
		"70 migrating: none stays":          {was: none, found: yes, migration: migration(v1.VirtualMachineInstanceMigrationState{}), want: none, keeps: true},
		"70 the migration failed":           {was: isTrue, found: unknown, migration: migration(v1.VirtualMachineInstanceMigrationState{Failed: true}), want: none},
		"70 the migration ended":            {was: none, found: yes, migration: migration(v1.VirtualMachineInstanceMigrationState{EndTimestamp: ptr.To(metav1.NewTime(noon))}), want: isTrue},
		"70 the migration has not started":  {was: none, found: yes, migration: &v1.VirtualMachineInstanceMigrationState{}, want: isTrue},
	} {
		t.Run(name, func(t *testing.T) {
			g := runs(was[tt.was])
			g.Status.MigrationState = tt.migration
			evaluator := MigrationEvaluatorFunc(func(*v1.VirtualMachineInstance, *corev1.Pod, time.Time) Verdict {
				return Verdict{Status: tt.found, Interface: "red", Reason: "why", DueAt: tt.due}
			})
			change := migrationRequired(g, nil, evaluator, noon)
			if got := outcome(g, change); got != tt.want {
				t.Errorf("got %s, want %s", got, tt.want)
			}
			if keeps := change.Set == nil && !change.Remove; keeps != tt.keeps {
				t.Errorf("keeps = %t, want %t", keeps, tt.keeps)
			}
			if !change.RequeueAt.Equal(tt.requeue) {
				t.Errorf("asks again at %s, want %s", change.RequeueAt, tt.requeue)
			}
			if change.Set != nil && change.Set.Message != "interface red: why" {
				t.Errorf("message %q", change.Set.Message)
			}
		})
	}
}

// A hotplugged interface requires a migration after networkGrace, once.
func TestMigrationRequired_HotpluggedInterface(t *testing.T) {
	g := runs(func(g *v1.VirtualMachineInstance) {
		g.Spec.Networks = []v1.Network{{Name: "red", NetworkSource: v1.NetworkSource{Multus: &v1.MultusNetwork{NetworkName: "nad"}}}}
		g.Spec.Domain.Devices.Interfaces = []v1.Interface{{Name: "red"}}
	})
	now, reported := noon, []string{}
	for range 3 {
		change := migrationRequired(g, &corev1.Pod{}, nil, now)
		change.apply(g, now)
		at := change.RequeueAt
		c := vmistatus.Condition(g, v1.VirtualMachineInstanceMigrationRequired)
		reported = append(reported, string(c.Status)+"@"+c.LastTransitionTime.Sub(noon).String())
		if at.IsZero() {
			at = now.Add(time.Hour)
		}
		now = at
	}
	if diff := cmp.Diff([]string{"False@0s", "True@15s", "True@15s"}, reported); diff != "" {
		t.Error(diff)
	}
}

func TestEvictionRequested(t *testing.T) {
	const set = "True/EvictionRequested"
	asked := func(g *v1.VirtualMachineInstance) { g.Status.EvacuationNodeName = "node-a" }
	isTrue := says(v1.VirtualMachineInstanceEvictionRequested, corev1.ConditionTrue, "EvictionRequested")
	type changes = []func(*v1.VirtualMachineInstance)
	for name, tt := range map[string]struct {
		guest changes
		want  string
		keeps bool
	}{
		"64 asked":              {changes{asked}, set, false},
		"64 asked and reported": {changes{asked, isTrue}, set, true},
		"64 asked and false":    {changes{asked, says(v1.VirtualMachineInstanceEvictionRequested, corev1.ConditionFalse, "x")}, set, false},
		"64 no longer asked":    {changes{isTrue}, "none", false},
		"64 never asked":        {nil, "none", true},
	} {
		t.Run(name, func(t *testing.T) {
			g := runs(tt.guest...)
			change := evictionRequested(g)
			if got := outcome(g, change); got != tt.want {
				t.Errorf("got %s, want %s", got, tt.want)
			}
			if keeps := change.Set == nil && !change.Remove; keeps != tt.keeps {
				t.Errorf("keeps = %t, want %t", keeps, tt.keeps)
			}
		})
	}
}
