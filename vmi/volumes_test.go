// SPDX-License-Identifier: Apache-2.0

package vmi

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	v1 "kubevirt.io/api/core/v1"
)

// entry adds an entry to the stored status.
func entry(name string, phase v1.VolumePhase, change ...func(*v1.VolumeStatus)) func(*v1.VirtualMachineInstance) {
	return func(g *v1.VirtualMachineInstance) {
		e := v1.VolumeStatus{Name: name, Phase: phase}
		for _, f := range change {
			f(&e)
		}
		g.Status.VolumeStatus = append(g.Status.VolumeStatus, e)
	}
}

func byPod(name string) func(*v1.VolumeStatus) {
	return func(e *v1.VolumeStatus) {
		e.HotplugVolume = &v1.HotplugVolumeStatus{AttachPodName: name, AttachPodUID: "uid-of-before"}
	}
}

func because(reason string) func(*v1.VolumeStatus) {
	return func(e *v1.VolumeStatus) { e.Reason, e.Message = reason, "as reported" }
}

func atTarget(dev string) func(*v1.VolumeStatus) {
	return func(e *v1.VolumeStatus) { e.Target = dev }
}

// settle returns the result of volumeStatus. Repeated, nothing may change, no event may be
// emitted, and the VMI must not be modified.
func settle(t *testing.T, k *shelf, plugged map[string]pluggedState) ([]v1.VolumeStatus, []Event) {
	t.Helper()
	before := k.VMI.DeepCopy()
	got, events := volumeStatus(k.Snapshot, helperPod("launcher"), plugged)
	if diff := cmp.Diff(before, k.VMI); diff != "" {
		t.Errorf("the guest was edited:\n%s", diff)
	}
	next := *k
	next.VMI = before
	next.VMI.Status.VolumeStatus = got
	again, more := volumeStatus(next.Snapshot, helperPod("launcher"), plugged)
	if diff := cmp.Diff(got, again); diff != "" || len(more) > 0 {
		t.Errorf("16 repeated, events %v:\n%s", more, diff)
	}
	return again, events
}

// sum returns the part of an entry that changes.
func sum(e v1.VolumeStatus) string {
	pod := "-"
	if h := e.HotplugVolume; h != nil {
		pod = fmt.Sprintf("%s/%s", h.AttachPodName, h.AttachPodUID)
	}
	return fmt.Sprintf("%s %s %s", e.Phase, e.Reason, pod)
}

func reasonsOf(events []Event) string {
	var all []string
	for _, e := range events {
		all = append(all, e.Reason)
	}
	return strings.Join(all, ",")
}

func TestVolumeStatus_WantedVolumes(t *testing.T) {
	unready := func(p *corev1.Pod) { p.Status.ContainerStatuses[0].Ready = false }
	two := func(p *corev1.Pod) {
		p.Status.ContainerStatuses = append(p.Status.ContainerStatuses, p.Status.ContainerStatuses[0])
	}
	none := func(p *corev1.Pod) { p.Status.ContainerStatuses = nil }
	brought := func(change ...func(*corev1.Pod)) pluggedState {
		return pluggedState{Wanted: true, Pod: helperPod("hp", change...)}
	}
	alone := pluggedState{Wanted: true}
	lost, unbound := inClaimPhase(corev1.ClaimLost), inClaimPhase(corev1.ClaimPending)
	for name, tc := range map[string]struct {
		was     func(*v1.VirtualMachineInstance)
		claim   func(*corev1.PersistentVolumeClaim)
		plugged pluggedState
		want    string
		events  string
	}{
		"new, bound":                {nil, nil, alone, "Bound PVCNotReady /", ""},
		"new, pending":              {nil, unbound, alone, "Pending PVCNotReady /", ""},
		"new, claim without phase":  {nil, inClaimPhase(""), alone, "Pending PVCNotReady /", ""},
		"new, lost":                 {nil, lost, alone, "Pending PVCNotReady /", ""},
		"new, what plugging says":   {nil, unbound, pluggedState{Wanted: true, Reason: "Later", Message: "m"}, "Pending Later /", ""},
		"new, a Pod":                {nil, nil, brought(), "AttachedToNode SuccessfulCreate hp/uid-hp", "SuccessfulCreate"},
		"new, a Pod not ready":      {nil, nil, brought(unready), "AttachedToNode SuccessfulCreate hp/", "SuccessfulCreate"},
		"new, a Pod with a sidecar": {nil, nil, brought(two), "AttachedToNode SuccessfulCreate hp/", "SuccessfulCreate"},
		"new, a Pod without status": {nil, nil, brought(none), "AttachedToNode SuccessfulCreate hp/", "SuccessfulCreate"},
		"95 new, a Pod that goes":   {nil, nil, brought(goingAway), "Bound PVCNotReady /", ""},
		"Bound, a Pod":              {entry("v", v1.VolumeBound, byPod("old")), nil, brought(), "AttachedToNode SuccessfulCreate hp/uid-hp", "SuccessfulCreate"},
		"Bound, in trouble":         {entry("v", v1.VolumeBound, byPod("old"), because("HotplugFailed")), nil, alone, "Bound HotplugFailed old/", ""},
		"36 Pending, entry is bare": {entry("v", v1.VolumePending), nil, alone, "Bound PVCNotReady /", ""},
		"attached, another Pod":     {entry("v", v1.HotplugVolumeAttachedToNode, byPod("old")), nil, brought(), "AttachedToNode SuccessfulCreate hp/uid-hp", ""},
		"attached, in trouble":      {entry("v", v1.HotplugVolumeAttachedToNode, byPod("hp"), because("HotplugFailed")), nil, brought(), "AttachedToNode HotplugFailed hp/uid-hp", ""},
		"attached, Pod gone":        {entry("v", v1.HotplugVolumeAttachedToNode, byPod("old"), because("SuccessfulCreate")), nil, alone, "Bound PVCNotReady old/", ""},
		"mounted":                   {entry("v", v1.HotplugVolumeMounted, byPod("hp"), because("VolumeMountedToPod")), nil, brought(), "MountedToPod VolumeMountedToPod hp/uid-hp", ""},
		"13 mounted, Pod gone":      {entry("v", v1.HotplugVolumeMounted, byPod("hp"), because("VolumeMountedToPod")), nil, alone, "MountedToPod VolumeMountedToPod hp/", ""},
		"ready, another Pod":        {entry("v", v1.VolumeReady, byPod("old"), because("VolumeReady")), nil, brought(), "Ready VolumeReady hp/uid-hp", ""},
		"ready, another not ready":  {entry("v", v1.VolumeReady, byPod("old"), because("VolumeReady")), nil, brought(unready), "Ready VolumeReady hp/", ""},
		"ready, Pod gone":           {entry("v", v1.VolumeReady, byPod("old"), because("VolumeReady")), nil, alone, "Ready VolumeReady old/uid-of-before", ""},
		"ready, entry is bare":      {entry("v", v1.VolumeReady), nil, alone, "Ready  /", ""},
		"added again, Pod gone":     {entry("v", v1.HotplugVolumeDetaching, byPod("old"), because("SuccessfulDelete")), nil, alone, "Bound PVCNotReady old/", ""},
		"added again, Pod there":    {entry("v", v1.HotplugVolumeDetaching, byPod("old")), nil, brought(), "AttachedToNode SuccessfulCreate hp/uid-hp", "SuccessfulCreate"},
		"added again, unmounted":    {entry("v", v1.HotplugVolumeUnMounted, byPod("old"), because("VolumeUnMountedFromPod")), nil, brought(), "AttachedToNode SuccessfulCreate hp/uid-hp", "SuccessfulCreate"},
		"a dump that is under way":  {entry("v", v1.MemoryDumpVolumeInProgress, byPod("old")), nil, brought(), "MemoryDumpInProgress  hp/uid-hp", ""},
		"a dump that is complete":   {entry("v", v1.MemoryDumpVolumeCompleted, byPod("old")), nil, alone, "MemoryDumpCompleted  old/", ""},
	} {
		t.Run(name, func(t *testing.T) {
			k := newShelf(v1.Running).volume("v", pvcSource("c", true)).claim("c")
			if tc.claim != nil {
				tc.claim(k.Storage.Claims["c"])
			}
			if tc.was != nil {
				k.guest(tc.was)
			}
			got, events := settle(t, k, map[string]pluggedState{"v": tc.plugged})
			if len(got) != 1 || sum(got[0]) != tc.want || reasonsOf(events) != tc.events {
				t.Errorf("got %v, events %v; want %s, events %q", got, events, tc.want, tc.events)
			}
			for _, e := range events {
				if e.Warning || !strings.Contains(e.Message, "Pod hp") || !strings.Contains(e.Message, "volume v") {
					t.Errorf("event %+v", e)
				}
			}
		})
	}
}

func TestVolumeStatus_MissingClaim(t *testing.T) {
	got, _ := settle(t, newShelf(v1.Running).volume("v", pvcSource("c", true)), map[string]pluggedState{"v": {Wanted: true}})
	if sum(got[0]) != "Pending FailedPvcNotFound /" || !strings.Contains(got[0].Message, "ns/c") || got[0].PersistentVolumeClaimInfo != nil {
		t.Errorf("got %+v", got[0])
	}
}

func TestVolumeStatus_RemovedVolumes(t *testing.T) {
	carried := func(change ...func(*corev1.Pod)) map[string]pluggedState {
		return map[string]pluggedState{"v": {Pod: helperPod("hp", change...)}}
	}
	for name, tc := range map[string]struct {
		was     func(*v1.VirtualMachineInstance)
		plugged map[string]pluggedState
		want    string
		events  string
	}{
		"91 phase unset":                      {entry("v", ""), carried(), "Detaching  hp/uid-hp", ""},
		"91 attached":                         {entry("v", v1.HotplugVolumeAttachedToNode, byPod("hp"), because("SuccessfulCreate")), carried(), "Detaching SuccessfulCreate hp/uid-hp", ""},
		"91 ready":                            {entry("v", v1.VolumeReady, byPod("hp"), because("VolumeDetaching")), carried(), "Ready VolumeDetaching hp/uid-hp", ""},
		"91 mounted":                          {entry("v", v1.HotplugVolumeMounted, byPod("hp")), carried(), "MountedToPod  hp/uid-hp", ""},
		"91 mounted, Pod goes":                {entry("v", v1.HotplugVolumeMounted, byPod("hp")), carried(goingAway), "MountedToPod  hp/uid-hp", ""},
		"91 unmounted":                        {entry("v", v1.HotplugVolumeUnMounted, byPod("hp"), because("VolumeUnMountedFromPod")), carried(), "Detaching VolumeUnMountedFromPod hp/uid-hp", ""},
		"91 unmounted, Pod goes":              {entry("v", v1.HotplugVolumeUnMounted, byPod("hp"), because("VolumeUnMountedFromPod")), carried(goingAway), "Detaching SuccessfulDelete hp/uid-hp", "SuccessfulDelete"},
		"91 detaching, Pod goes":              {entry("v", v1.HotplugVolumeDetaching, byPod("hp")), carried(goingAway), "Detaching SuccessfulDelete hp/uid-hp", "SuccessfulDelete"},
		"16 detaching, reported":              {entry("v", v1.HotplugVolumeDetaching, byPod("hp"), because("SuccessfulDelete")), carried(goingAway), "Detaching SuccessfulDelete hp/uid-hp", ""},
		"91 detaching, the guest has it":      {entry("v", v1.HotplugVolumeDetaching, byPod("hp"), because("VolumeDetaching")), carried(goingAway), "Detaching VolumeDetaching hp/uid-hp", ""},
		"91 a dump, complete":                 {entry("v", v1.MemoryDumpVolumeCompleted, byPod("hp")), carried(), "Detaching  hp/uid-hp", ""},
		"36 entry is bare":                    {entry("v", v1.HotplugVolumeDetaching), carried(goingAway), "Detaching SuccessfulDelete hp/uid-hp", "SuccessfulDelete"},
		"92 Pod gone, detaching":              {entry("v", v1.HotplugVolumeDetaching, byPod("hp")), nil, "", ""},
		"92 Pod gone, unmounted":              {entry("v", v1.HotplugVolumeUnMounted, byPod("hp")), nil, "", ""},
		"92 Pod gone, bound":                  {entry("v", v1.VolumeBound, byPod("")), nil, "", ""},
		"92 Pod gone, nothing known":          {entry("v", ""), nil, "", ""},
		"92 Pod gone, no Pod reported":        {entry("v", v1.VolumeBound, byPod("")), map[string]pluggedState{"v": {}}, "", ""},
		"92 Pod gone, the guest has it":       {entry("v", v1.VolumeReady, byPod("hp")), nil, "Ready  hp/uid-of-before", ""},
		"92 Pod gone, the node has it":        {entry("v", v1.HotplugVolumeMounted, byPod("hp")), nil, "MountedToPod  hp/uid-of-before", ""},
		"92 Pod gone, the node made the word": {entry("v", "", atTarget("sda")), nil, "  -", ""},
	} {
		t.Run(name, func(t *testing.T) {
			got, events := settle(t, newShelf(v1.Running).guest(tc.was), tc.plugged)
			var said string
			if len(got) > 0 {
				said = sum(got[0])
			}
			if said != tc.want || reasonsOf(events) != tc.events {
				t.Errorf("got %q, events %v; want %q, events %q", said, events, tc.want, tc.events)
			}
		})
	}
}

func TestVolumeStatus_Entries(t *testing.T) {
	name := func(list []v1.VolumeStatus) (all []string) {
		for _, e := range list {
			all = append(all, e.Name)
		}
		return all
	}
	t.Run("122 sorted, and plain volumes are not plugged", func(t *testing.T) {
		k := newShelf(v1.Running).pvc("z").claim("z").volume("m", v1.VolumeSource{ContainerDisk: &v1.ContainerDiskSource{}}).pvc("a").
			guest(utility("u", "z")).guest(entry("m", "", atTarget("vda"), func(e *v1.VolumeStatus) { e.ContainerDiskVolume = &v1.ContainerDiskInfo{Checksum: 7} }))
		got, _ := settle(t, k, nil)
		if !slices.Equal(name(got), []string{"a", "m", "u", "z"}) {
			t.Errorf("entries are %v", name(got))
		}
		for _, e := range got {
			if (e.HotplugVolume != nil) != (e.Name == "u") {
				t.Errorf("122 entry %+v", e)
			}
		}
		if m := got[1]; m.Target != "vda" || m.ContainerDiskVolume == nil || m.PersistentVolumeClaimInfo != nil {
			t.Errorf("what the node wrote is %+v", m)
		}
	})
	t.Run("names are keys", func(t *testing.T) {
		k := newShelf(v1.Running).pvc("a").pvc("a").guest(utility("a", "a")).guest(entry("a", "", atTarget("vda"))).guest(entry("a", "", atTarget("vdb")))
		if got, _ := settle(t, k, nil); len(got) != 1 || got[0].Target != "vda" {
			t.Errorf("entries are %+v", got)
		}
	})
	t.Run("nothing new without a Pod", func(t *testing.T) {
		k := newShelf(v1.Running).pvc("a").guest(entry("b", v1.VolumeBound))
		if got, events := volumeStatus(k.Snapshot, nil, nil); !cmp.Equal(got, k.VMI.Status.VolumeStatus) || events != nil {
			t.Errorf("got %v, events %v", got, events)
		}
	})
	t.Run("a dump is reported by the name of its volume, once", func(t *testing.T) {
		dump := v1.VolumeSource{MemoryDump: &v1.MemoryDumpVolumeSource{PersistentVolumeClaimVolumeSource: v1.PersistentVolumeClaimVolumeSource{
			PersistentVolumeClaimVolumeSource: corev1.PersistentVolumeClaimVolumeSource{ClaimName: "c"}}}}
		got, _ := settle(t, newShelf(v1.Running).volume("d", dump).claim("c"), nil)
		if got[0].MemoryDumpVolume.ClaimName != "d" || got[0].PersistentVolumeClaimInfo.ClaimName != "c" {
			t.Errorf("entry %+v", got[0])
		}
		end := metav1.Unix(1, 0)
		k := newShelf(v1.Running).volume("d", dump).guest(entry("d", "", func(e *v1.VolumeStatus) { e.MemoryDumpVolume = &v1.DomainMemoryDumpInfo{EndTimestamp: &end} }))
		if got, _ = settle(t, k, nil); got[0].MemoryDumpVolume.EndTimestamp == nil {
			t.Errorf("what the node wrote is lost: %+v", got[0])
		}
	})
	t.Run("a utility volume that is a block device", func(t *testing.T) {
		k := newShelf(v1.Running).claim("c", asBlock).guest(utility("u", "c"))
		got, events := settle(t, k, map[string]pluggedState{"u": {Wanted: true, Pod: helperPod("hp")}})
		if sum(got[0]) != "Pending PVCNotReady /" || !strings.Contains(got[0].Message, "spec.volumeMode") || events != nil || got[0].PersistentVolumeClaimInfo != nil {
			t.Errorf("entry %+v, events %v", got[0], events)
		}
	})
	t.Run("a utility volume that a Pod brings", func(t *testing.T) {
		k := newShelf(v1.Running).claim("c").guest(utility("u", "c"))
		got, events := settle(t, k, map[string]pluggedState{"u": {Wanted: true, Pod: helperPod("hp")}})
		if sum(got[0]) != "AttachedToNode SuccessfulCreate hp/uid-hp" || reasonsOf(events) != "SuccessfulCreate" {
			t.Errorf("entry %+v, events %v", got[0], events)
		}
	})
}
