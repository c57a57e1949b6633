// SPDX-License-Identifier: Apache-2.0

package vmi_test

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/vmi"
)

func specLiveUpdates() specRows {
	cpus := func(has, want, most uint32) func(*v1.VirtualMachineInstance) {
		return func(g *v1.VirtualMachineInstance) {
			g.Status.CurrentCPUTopology = &v1.CPUTopology{Cores: 2, Sockets: has, Threads: 1}
			g.Spec.Domain.CPU = &v1.CPU{Cores: 2, Sockets: want, Threads: 1, MaxSockets: most}
		}
	}
	memory := func(has, want string) func(*v1.VirtualMachineInstance) {
		return func(g *v1.VirtualMachineInstance) {
			h, w, most := resource.MustParse(has), resource.MustParse(want), resource.MustParse("8Gi")
			g.Status.Memory = &v1.MemoryStatus{GuestRequested: &h}
			g.Spec.Domain.Memory = &v1.Memory{Guest: &w, MaxGuest: &most}
		}
	}
	says := func(of v1.VirtualMachineInstanceConditionType, status corev1.ConditionStatus) func(*v1.VirtualMachineInstance) {
		return func(g *v1.VirtualMachineInstance) {
			g.Status.Conditions = append(g.Status.Conditions, v1.VirtualMachineInstanceCondition{Type: of, Status: status})
		}
	}
	moves := func(g *v1.VirtualMachineInstance) {
		g.Status.MigratedVolumes = []v1.StorageMigratedVolumeInfo{{VolumeName: "d",
			SourcePVCInfo: &v1.PersistentVolumeClaimInfo{ClaimName: "old"}, DestinationPVCInfo: &v1.PersistentVolumeClaimInfo{ClaimName: "new"}}}
	}
	has := with(pod("p", func(p *corev1.Pod) { p.Spec.Volumes = []corev1.Volume{{Name: "old"}, {Name: "new"}} }))
	is := func(conditions string, change ...func(*v1.VirtualMachineInstance)) specCase {
		return specCase{given: given(of(v1.Running, append(change, owned)...), has), phase: v1.Running, conditions: conditions, settled: true}
	}
	scheduled := specCase{given: given(of(v1.Scheduled, owned, cpus(1, 2, 4)), has), phase: v1.Scheduled, conditions: notYet, waits: "GuestNotRunning"}
	ended := specCase{given: given(of(v1.Succeeded, cpus(1, 2, 4), memory("1Gi", "2Gi")), with(pod("p", podPhase(corev1.PodSucceeded)))), phase: v1.Succeeded, conditions: terminatingPod}
	ratio := is("HotMemoryChange=True "+runs, memory("1Gi", "2Gi"))
	ratio.given = append(ratio.given, set(func(c *vmi.Config) { c.MemoryRatio = "1.5" }))
	ratio.fields = texts{"metadata labels kubevirt.io/memory-hotplug-overhead-ratio": "1.5"}
	changed, unchanged := is("Ready=True VolumesChange=True", moves), is(runs, moves)
	changed.given, unchanged.given = append(changed.given, reads("new", false)), append(unchanged.given, reads("old", false))
	return specRows{
		"67 another number of CPUs":                     is("HotVCPUChange=True "+runs, cpus(1, 2, 4)),
		"67 the same number of CPUs":                    is(runs, cpus(2, 2, 4)),
		"67 no sockets to be plugged":                   is(runs, cpus(1, 2, 0)),
		"67 it was asked for, and refused":              is("HotVCPUChange=False "+runs, cpus(1, 2, 4), says("HotVCPUChange", corev1.ConditionFalse)),
		"67 a guest that does not run yet":              scheduled,
		"67 a guest that has ended":                     ended,
		"67 another amount of memory":                   is("HotMemoryChange=True "+runs, memory("1Gi", "2Gi")),
		"67 another amount of memory, with a ratio":     ratio,
		"67 the same amount of memory":                  is(runs, memory("2Gi", "2Gi")),
		"67 more memory was asked for, and refused":     is("HotMemoryChange=False "+runs, memory("1Gi", "2Gi"), says("HotMemoryChange", corev1.ConditionFalse)),
		"67 volumes that the guest is to be moved to":   changed,
		"67 volumes that the guest is to be moved from": unchanged,
	}
}

func specMustMigrate() specRows {
	const yes, no = "MigrationRequired=True/AutoMigrationDueToLiveUpdate ", "MigrationRequired=False/AutoMigrationPending "
	rows := specRows{}
	for _, row := range []struct {
		was, verdict corev1.ConditionStatus
		want         string
	}{
		{"", corev1.ConditionUnknown, ""}, {"", corev1.ConditionFalse, no}, {"", corev1.ConditionTrue, yes},
		{corev1.ConditionFalse, corev1.ConditionFalse, no}, {corev1.ConditionTrue, corev1.ConditionFalse, yes},
		{corev1.ConditionFalse, corev1.ConditionTrue, yes}, {corev1.ConditionTrue, corev1.ConditionTrue, yes},
		{corev1.ConditionFalse, corev1.ConditionUnknown, ""}, {corev1.ConditionTrue, corev1.ConditionUnknown, ""},
	} {
		was := func(*v1.VirtualMachineInstance) {}
		if row.was != "" {
			was = judged(row.was)
		}
		c := specCase{given: given(of(v1.Running, owned, was), with(pod("p")), verdict(row.verdict)), phase: v1.Running, conditions: row.want + runs, settled: true}
		if row.want == no {
			c.requeue = 10 * time.Second
		}
		rows[fmt.Sprintf("68 it was %q and is %s", row.was, row.verdict)] = c
	}
	moving := func(g *v1.VirtualMachineInstance) {
		start := metav1.NewTime(now)
		g.Status.MigrationState = &v1.VirtualMachineInstanceMigrationState{StartTimestamp: &start}
	}
	rows["70 a guest that migrates: what was said stays"] = specCase{
		given: given(of(v1.Running, owned, moving, judged(corev1.ConditionFalse)), with(pod("p")), verdict(corev1.ConditionTrue)), phase: v1.Running, conditions: no + runs}
	rows["70 a guest that migrates: nothing is said"] = specCase{
		given: given(of(v1.Running, owned, moving), with(pod("p")), verdict(corev1.ConditionTrue)), phase: v1.Running, conditions: runs}
	plugs := func(card v1.Interface, change ...func(*v1.VirtualMachineInstance)) []func(*vmi.Snapshot) {
		return given(of(v1.Running, append(change, owned, networks(multus("red", "nad")), cards(card))...), with(pod("p")))
	}
	rows["71 a new SR-IOV interface: at once"] = specCase{given: plugs(sriov("red")), phase: v1.Running, conditions: yes + runs, settled: true}
	rows["71 a new bridge: not at first (better: the time at which it will is known)"] = specCase{
		given: plugs(bridge("red")), phase: v1.Running, conditions: no + runs, requeue: 15 * time.Second, settled: true}
	rows["71 a new bridge, for 15 s"] = specCase{
		given: plugs(bridge("red"), required(corev1.ConditionFalse, now.Add(-15*time.Second))), phase: v1.Running, conditions: yes + runs, settled: true}
	return rows
}

// judged sets the previous condition, with reason and message.
func judged(is corev1.ConditionStatus) func(*v1.VirtualMachineInstance) {
	return func(g *v1.VirtualMachineInstance) {
		required(is, now)(g)
		c := condition(g, v1.VirtualMachineInstanceMigrationRequired)
		if c.Reason = "AutoMigrationDueToLiveUpdate"; is == corev1.ConditionFalse {
			c.Reason = "AutoMigrationPending"
		}
	}
}

func verdict(is corev1.ConditionStatus) func(*vmi.Snapshot) {
	return set(func(c *vmi.Config) {
		c.MigrationEvaluator = vmi.MigrationEvaluatorFunc(func(*v1.VirtualMachineInstance, *corev1.Pod, time.Time) vmi.Verdict {
			return vmi.Verdict{Status: is}
		})
	})
}
