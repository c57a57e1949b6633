// SPDX-License-Identifier: Apache-2.0

package vmi

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	v1 "kubevirt.io/api/core/v1"
)

func TestStaleTemporaries(t *testing.T) {
	trigger := func(p *corev1.Pod) { p.Labels[v1.AppLabel] = "hotplug-disk" }
	launcher := func(p *corev1.Pod) { p.Annotations = nil }
	done := func() *shelf { return newShelf(pending).dv("a").filled("a", succeeded) }
	beside := done().temporary("t")
	beside.Attachments, beside.Pods = append(beside.Pods, nil), nil
	for name, tc := range map[string]struct {
		shelf *shelf
		want  []string
	}{
		"no Pods":                     {done(), nil},
		"23 claims wait":              {newShelf(pending).dv("a").filled("a", unconsumed).temporary("t"), nil},
		"25 running":                  {done().temporary("t"), []string{"t"}},
		"25 succeeded":                {done().temporary("t", inPodPhase(corev1.PodSucceeded)), []string{"t"}},
		"25 failed":                   {done().temporary("t", inPodPhase(corev1.PodFailed)), []string{"t"}},
		"25 pending, in the way":      {done().temporary("t", inPodPhase(corev1.PodPending)), []string{"t"}},
		"25 terminating":              {done().temporary("t", goingAway), nil},
		"25 two, one terminating":     {done().temporary("t", goingAway).temporary("u"), []string{"u"}},
		"26 beside the guest's Pod":   {beside, []string{"t"}},
		"26 a trigger":                {done().temporary("t", trigger), nil},
		"26 the guest's Pod":          {done().temporary("t", launcher), nil},
		"the claim has gone meantime": {newShelf(pending).dv("a").temporary("t"), []string{"t"}},
	} {
		t.Run(name, func(t *testing.T) {
			var got []string
			for _, a := range staleTemporaries(tc.shelf.Snapshot) {
				got = append(got, a.Pod.Name)
				if a.Verb != DeletePod || a.GraceSeconds == nil || *a.GraceSeconds != 0 || a.Fault != "FailedHotplugSync" || a.Why == "" {
					t.Errorf("action is %s with fault %q, want a deletion at once", a, a.Fault)
				}
			}
			if !slices.Equal(got, tc.want) {
				t.Errorf("deletes %v, want %v", got, tc.want)
			}
		})
	}
}

func TestTemporaryFailed(t *testing.T) {
	ended := func(container string, code int32) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: container, State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: code}}}}
		}
	}
	waiting := func() *shelf { return newShelf(pending).dv("a").filled("a", unconsumed) }
	for name, tc := range map[string]struct {
		shelf *shelf
		want  bool
	}{
		"22 no Pod yet":               {waiting(), false},
		"23 running":                  {waiting().temporary("t"), false},
		"pending":                     {waiting().temporary("t", inPodPhase(corev1.PodPending)), false},
		"succeeded":                   {waiting().temporary("t", inPodPhase(corev1.PodSucceeded), ended("compute", 0)), false},
		"failed":                      {waiting().temporary("t", inPodPhase(corev1.PodFailed)), true},
		"terminating":                 {waiting().temporary("t", goingAway), true},
		"compute ended with an error": {waiting().temporary("t", ended("compute", 1)), true},
		"another ended with an error": {waiting().temporary("t", ended("sidecar", 1)), false},
		"25 failed, nobody waits":     {newShelf(pending).dv("a").filled("a", succeeded).temporary("t", inPodPhase(corev1.PodFailed)), false},
		"26 another's Pod":            {waiting().temporary("t", inPodPhase(corev1.PodFailed), func(p *corev1.Pod) { p.Annotations = nil }), false},
	} {
		t.Run(name, func(t *testing.T) {
			if got := temporaryFailed(tc.shelf.Snapshot); (got != nil) != tc.want {
				t.Errorf("failed is %v, want %v", got, tc.want)
			}
		})
	}
}

func TestUnplaceable(t *testing.T) {
	scheduled := func(status corev1.ConditionStatus) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: status, Reason: "Unschedulable", Message: "no room"}}
		}
	}
	waiting := func() *shelf { return newShelf(pending).dv("a").filled("a", unconsumed) }
	unseen := waiting()
	unseen.Pending = []string{"a Pod"}
	missing := newShelf(pending).pvc("a")
	for name, tc := range map[string]struct {
		shelf   *shelf
		blocked *Wait
		want    string
		remove  bool
	}{
		"nothing in the way":            {newShelf(pending), nil, "", true},
		"17 a claim does not exist":     {missing, claimsExist(missing.Snapshot), "False Unschedulable", false},
		"another thing in the way":      {newShelf(pending), &Wait{Reason: ReasonFailedCreate}, "", true},
		"22 no temporary Pod":           {waiting(), nil, "", true},
		"23 temporary Pod is placed":    {waiting().temporary("t", scheduled(corev1.ConditionTrue)), nil, "", true},
		"temporary Pod is not":          {waiting().temporary("t", scheduled(corev1.ConditionFalse)), nil, "False Unschedulable", false},
		"it is not, nobody needs it":    {newShelf(pending).dv("a").filled("a", succeeded).temporary("t", scheduled(corev1.ConditionFalse)), nil, "", true},
		"the guest has its Pod":         {waiting().temporary("l", func(p *corev1.Pod) { p.Annotations = nil }), nil, "", false},
		"the guest is being scheduled":  {newShelf(v1.Scheduling), nil, "", false},
		"own writes are not seen":       {unseen, nil, "", false},
		"17 an import, no claim's word": {newShelf(pending), &Wait{Reason: ReasonFailedDataVolumeImport}, "", true},
	} {
		t.Run(name, func(t *testing.T) {
			got := unplaceable(tc.shelf.Snapshot, tc.blocked)
			var words string
			if c := got.Set; c != nil {
				words = string(c.Status) + " " + c.Reason
				if c.Message == "" || c.Type != "PodScheduled" {
					t.Errorf("condition is %+v", c)
				}
			}
			if words != tc.want || got.Remove != tc.remove || got.Type != "PodScheduled" {
				t.Errorf("got %q, remove %v; want %q, remove %v", words, got.Remove, tc.want, tc.remove)
			}
		})
	}
}
