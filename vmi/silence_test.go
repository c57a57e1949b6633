// SPDX-License-Identifier: Apache-2.0

package vmi_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/handoff"
	"github.com/virtloom/virtloom/vmi"
)

func until(at time.Time) *metav1.Time {
	t := metav1.NewTime(at)
	return &t
}

func TestSilence_Evidence(t *testing.T) {
	silent := func(nodes ...string) map[string]time.Time {
		m := map[string]time.Time{}
		for _, n := range nodes {
			m[n] = now.Add(-time.Hour)
		}
		return m
	}
	gone := func(nodes ...string) map[string]handoff.Evidence {
		m := map[string]handoff.Evidence{}
		for _, n := range nodes {
			m[n] = handoff.Evidence{Kind: handoff.NodeGone, Detail: "the Node object does not exist"}
		}
		return m
	}
	past, future := until(now), until(now.Add(time.Minute))
	owned := handoff.Lease{State: handoff.Owned, Epoch: 4, Holder: "node-a"}
	stock := handoff.Lease{State: handoff.Owned, Epoch: 4, Holder: "node-a", Cause: handoff.CauseStock}
	offered := handoff.Lease{State: handoff.Offered, Epoch: 4, Holder: "node-a"}
	lost := func(d *metav1.Time) handoff.Lease {
		return handoff.Lease{State: handoff.Lost, Was: handoff.Owned, Epoch: 4, Holder: "node-a", Deadline: d}
	}
	move := func(s handoff.State, d *metav1.Time) handoff.Lease {
		return handoff.Lease{State: s, Epoch: 4, Holder: "node-a", Target: "node-b", Tag: "m", Deadline: d}
	}
	stalled := move(handoff.Moving, past)
	stalled.Stalled = true
	adrift := move(handoff.Lost, past)
	adrift.Was = handoff.Moving
	abroad := stalled
	abroad.Target = handoff.Elsewhere
	atAbroad := handoff.Lease{State: handoff.Fenced, Epoch: 4, Target: handoff.Elsewhere, Tag: "m", Deadline: past}
	nowhere := []string{handoff.Elsewhere}
	atTarget := handoff.Lease{State: handoff.Fenced, Epoch: 4, Target: "node-b", Tag: "m", Deadline: past}

	for name, tt := range map[string]struct {
		lease    handoff.Lease
		silent   map[string]time.Time
		evidence map[string]handoff.Evidence
		want     handoff.State
		phase    v1.VirtualMachineInstancePhase
		asks     string
		requeue  time.Duration
	}{
		"a node that speaks":                {lease: owned, want: handoff.Owned, phase: v1.Running},
		"another node is silent":            {lease: owned, silent: silent("node-b"), want: handoff.Owned, phase: v1.Running},
		"a silent node":                     {lease: owned, silent: silent("node-a"), want: handoff.Lost, phase: v1.Running, requeue: handoff.FenceAfter},
		"a silent node, gone":               {lease: owned, silent: silent("node-a"), evidence: gone("node-a"), want: handoff.Lost, phase: v1.Running, requeue: handoff.FenceAfter},
		"a silent node of stock KubeVirt":   {lease: stock, silent: silent("node-a"), want: handoff.Owned, phase: v1.Running, asks: "node-a", requeue: time.Minute},
		"a stock node without Node object":  {lease: stock, silent: silent("node-a"), evidence: gone("node-a"), want: handoff.Owned, phase: v1.Running, asks: "node-a", requeue: time.Minute},
		"lost, no evidence":                 {lease: lost(past), silent: silent("node-a"), want: handoff.Lost, phase: v1.Running, asks: "node-a", requeue: time.Minute},
		"lost, and the node speaks":         {lease: lost(past), evidence: gone("node-a"), want: handoff.Lost, phase: v1.Running},
		"lost, evidence too early":          {lease: lost(future), silent: silent("node-a"), evidence: gone("node-a"), want: handoff.Lost, phase: v1.Running, asks: "node-a", requeue: time.Minute},
		"lost, evidence":                    {lease: lost(past), silent: silent("node-a"), evidence: gone("node-a"), want: handoff.Released, phase: v1.Failed, asks: "node-a"},
		"lost, evidence about another":      {lease: lost(past), silent: silent("node-a"), evidence: gone("node-b"), want: handoff.Lost, phase: v1.Running, asks: "node-a", requeue: time.Minute},
		"fenced":                            {lease: handoff.Lease{State: handoff.Fenced, Epoch: 4}, want: handoff.Released, phase: v1.Failed},
		"source silent, target prepares":    {lease: move(handoff.Preparing, future), silent: silent("node-a"), want: handoff.Preparing, phase: v1.Running, requeue: time.Minute},
		"source silent, target overdue":     {lease: move(handoff.Prepared, past), silent: silent("node-a"), want: handoff.Lost, phase: v1.Running, requeue: handoff.FenceAfter},
		"source silent in the move":         {lease: move(handoff.Moving, future), silent: silent("node-a"), want: handoff.Lost, phase: v1.Running, requeue: handoff.FenceAfter},
		"target silent in the move":         {lease: move(handoff.Moving, future), silent: silent("node-b"), evidence: gone("node-b"), want: handoff.Moving, phase: v1.Running},
		"source gone, target may have it":   {lease: adrift, silent: silent("node-a"), evidence: gone("node-a"), want: handoff.Fenced, phase: v1.Running, asks: "node-a", requeue: handoff.FenceAfter},
		"stalled, on the way elsewhere":     {lease: abroad, silent: silent(nowhere...), evidence: gone(nowhere...), want: handoff.Moving, phase: v1.Running},
		"fenced, on the way elsewhere":      {lease: atAbroad, silent: silent(nowhere...), evidence: gone(nowhere...), want: handoff.Fenced, phase: v1.Running},
		"stalled, target speaks":            {lease: stalled, evidence: gone("node-b"), want: handoff.Moving, phase: v1.Running},
		"stalled, target silent":            {lease: stalled, silent: silent("node-b"), want: handoff.Moving, phase: v1.Running, asks: "node-b", requeue: time.Minute},
		"stalled, target gone":              {lease: stalled, silent: silent("node-b"), evidence: gone("node-b"), want: handoff.Released, phase: v1.Failed, asks: "node-b"},
		"source fenced, target speaks":      {lease: atTarget, want: handoff.Fenced, phase: v1.Running},
		"source fenced, target gone":        {lease: atTarget, silent: silent("node-b"), evidence: gone("node-b"), want: handoff.Released, phase: v1.Failed, asks: "node-b"},
		"an offer to a silent node":         {lease: offered, silent: silent("node-a"), want: handoff.Owned, phase: v1.Running, asks: "node-a", requeue: time.Minute}, // phase Running: a stock agent took it
		"a guest that is ending, node lost": {lease: handoff.Lease{State: handoff.Releasing, Epoch: 4, Holder: "node-a", Deadline: future}, silent: silent("node-a"), want: handoff.Lost, phase: v1.Running, requeue: handoff.FenceAfter},
	} {
		t.Run(name, func(t *testing.T) {
			s := vmi.Snapshot{VMI: guest(v1.Running, lease(tt.lease)), Pods: []*corev1.Pod{pod("p")}, Silent: tt.silent, Evidence: tt.evidence}
			if asks := strings.Join(s.NeedsEvidence(), ","); asks != tt.asks {
				t.Errorf("asks for evidence about %q, want %q", asks, tt.asks)
			}
			plan := vmi.Decide(s, now)
			got, err := handoff.Of(plan.VMI)
			if err != nil || got.State != tt.want || plan.VMI.Status.Phase != tt.phase {
				t.Errorf("lease %+v, phase %s, %v; want %s, %s", got, plan.VMI.Status.Phase, err, tt.want, tt.phase)
			}
			if at := plan.RequeueAt; (at == nil) != (tt.requeue == 0) || at != nil && !at.Equal(now.Add(tt.requeue)) {
				t.Errorf("looks again at %v, want after %s", at, tt.requeue)
			}
			emitted := slices.ContainsFunc(plan.Events, func(e vmi.Event) bool { return e.Reason == vmi.ReasonNodeUnresponsive })
			if news := got.State != tt.lease.State && got.State != handoff.Fenced && got.State != handoff.Owned; emitted != news {
				t.Errorf("event: %t, want %t", emitted, news)
			}
		})
	}
}

// TestSilence_StalledSource: only the target can report whether the domain runs. An
// unresponsive source changes nothing, and is not reported.
func TestSilence_StalledSource(t *testing.T) {
	stalled := handoff.Lease{State: handoff.Moving, Stalled: true, Epoch: 4, Holder: "node-a", Target: "node-b", Tag: "m", Deadline: until(now.Add(time.Minute))}
	s := vmi.Snapshot{
		VMI: guest(v1.Running, lease(stalled)), Pods: []*corev1.Pod{pod("launcher")},
		Silent: map[string]time.Time{"node-a": now.Add(-time.Hour)},
	}
	spoken := s
	spoken.Silent = nil
	got, want := vmi.Decide(s, now), vmi.Decide(spoken, now)
	if d := cmp.Diff(want.VMI, got.VMI); d != "" {
		t.Errorf("the object reports the unresponsive source (-want +got):\n%s", d)
	}
}

// TestDecide_MissingPodWhileWritesUnseen: a cache that has not observed own writes is no evidence
// that a VMI has no Pod after the handoff.
func TestDecide_MissingPodWhileWritesUnseen(t *testing.T) {
	for _, phase := range []v1.VirtualMachineInstancePhase{v1.Scheduled, v1.Running} {
		s := vmi.Snapshot{VMI: guest(phase, lease(handoff.Lease{State: handoff.Offered, Epoch: 1, Holder: "node-a", Deadline: until(now.Add(time.Minute))}))}
		if got := vmi.Decide(s, now).VMI.Status.Phase; got != v1.Failed {
			t.Errorf("%s without a Pod: phase %s, want Failed", phase, got)
		}
		s.Pending = []string{"create of Pod ns/launcher"}
		if got := vmi.Decide(s, now).VMI.Status.Phase; got != phase {
			t.Errorf("%s while own writes are unseen: phase %s", phase, got)
		}
	}
}

func TestSilence_LostVMIReportsEvidence(t *testing.T) {
	l := handoff.Lease{State: handoff.Lost, Was: handoff.Owned, Epoch: 4, Holder: "node-a", Deadline: until(now)}
	s := vmi.Snapshot{VMI: guest(v1.Running, lease(l), deleting), Pods: []*corev1.Pod{pod("p")}, Silent: map[string]time.Time{"node-a": now},
		Evidence: map[string]handoff.Evidence{"node-a": {Kind: handoff.FenceConfirmed, Detail: "powered off"}}}
	plan := vmi.Decide(s, now)
	c := condition(plan.VMI, v1.VirtualMachineInstanceSynchronized)
	if c == nil || !strings.Contains(c.Message, "node-a") || !strings.Contains(c.Message, "powered off") || plan.VMI.Status.Reason != vmi.ReasonNodeUnresponsive {
		t.Errorf("condition %+v, reason %q", c, plan.VMI.Status.Reason)
	}
}

// An object that was replaced as a whole loses annotations, labels and status. A domain that
// still runs must not be started a second time.
func TestDecide_LostStatus(t *testing.T) {
	owned := handoff.Lease{State: handoff.Owned, Epoch: 4, Holder: "node-b"}
	target := pod("target", func(p *corev1.Pod) {
		p.Labels, p.Spec.NodeName = map[string]string{v1.MigrationJobLabel: "m"}, "node-b"
	})
	ended := target.DeepCopy()
	ended.Status.Phase = corev1.PodFailed
	for name, tt := range map[string]struct {
		change []func(*v1.VirtualMachineInstance)
		pods   []*corev1.Pod
		want   string
		phase  v1.VirtualMachineInstancePhase
	}{
		"everything; the launcher is there":     {nil, []*corev1.Pod{pod("p")}, "", v1.Scheduling},
		"everything; it had moved":              {nil, []*corev1.Pod{target}, "", v1.Pending},
		"everything; it had moved, and ended":   {nil, []*corev1.Pod{ended}, "CreateLauncher", v1.Pending},
		"the status; the lease is there":        {[]func(*v1.VirtualMachineInstance){lease(owned)}, []*corev1.Pod{target}, "", v1.Scheduled},
		"the status and the Pods; the lease is": {[]func(*v1.VirtualMachineInstance){lease(owned)}, nil, "", v1.Scheduled},
	} {
		t.Run(name, func(t *testing.T) {
			g := guest(v1.Pending, tt.change...)
			g.Labels, g.Status.NodeName = nil, ""
			plan := vmi.Decide(vmi.Snapshot{VMI: g, Pods: tt.pods}, now)
			var verbs []string
			for _, a := range plan.Actions {
				verbs = append(verbs, string(a.Verb))
			}
			creates := slices.Contains(verbs, string(vmi.CreateLauncher))
			if creates != (tt.want != "") || plan.VMI.Status.Phase != tt.phase {
				t.Errorf("%s\nwant phase %s, %q", plan, tt.phase, tt.want)
			}
			if tt.change != nil && plan.VMI.Labels[v1.NodeNameLabel] != "node-b" {
				t.Errorf("labels %v", plan.VMI.Labels)
			}
		})
	}
}
