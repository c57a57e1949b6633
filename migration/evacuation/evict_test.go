// SPDX-License-Identifier: Apache-2.0

package evacuation

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/internal/launcherpod"
	"github.com/virtloom/virtloom/migration"
)

type evictionCase struct {
	guest       []func(*Candidate)
	pod         func(*corev1.Pod)
	none        bool // there is no VMI
	descheduler bool
	cluster     *v1.EvictionStrategy
	allowed     bool
	reason      migration.Reason
	says        string
	mark        *EvictionMark
}

var (
	external = strategy(v1.EvictionStrategyExternal)
	toLeave  = &EvictionMark{Node: sourceNode}
)

const triggered = `Eviction triggered evacuation of VMI "ns/guest"`

var evictionCases = map[string]evictionCase{
	"S14/121 LiveMigrate, migratable": {reason: ReasonEvictionBegun, says: triggered, mark: toLeave},
	"S14/121 LiveMigrate, asked before": {
		guest: []func(*Candidate){marked(sourceNode)}, reason: reasonEvictionUnderWay, says: "Evacuation in progress: " + triggered,
	},
	"S14/121 LiveMigrate, not migratable": {guest: []func(*Candidate){notMigratable}, reason: migration.ReasonNotMigratable, says: "is not live-migratable"},
	"S14/121 None":                        {guest: []func(*Candidate){strategy(v1.EvictionStrategyNone)}, cluster: &migrate, allowed: true, reason: ReasonStrategyNone},
	"S14/121 unset":                       {guest: []func(*Candidate){noStrategy}, allowed: true, reason: ReasonStrategyNone},
	"S14/121 the cluster's":               {guest: []func(*Candidate){noStrategy}, cluster: &migrate, reason: ReasonEvictionBegun, mark: toLeave},
	"S14/121 if possible, migratable":     {guest: []func(*Candidate){strategy(ifPossible)}, reason: ReasonEvictionBegun, mark: toLeave},
	"S14/121 if possible, not migratable": {guest: []func(*Candidate){strategy(ifPossible), notMigratable}, allowed: true, reason: migration.ReasonNotMigratable},
	"if possible, not said yet": {
		guest: []func(*Candidate){strategy(ifPossible), silent(v1.VirtualMachineInstanceIsMigratable)}, reason: migration.ReasonNotMigratable, says: "not reported yet",
	},
	"if possible, it begins to run": {
		guest:   []func(*Candidate){strategy(ifPossible), silent(v1.VirtualMachineInstanceIsMigratable), is(func(vmi *v1.VirtualMachineInstance) { vmi.Status.Phase = v1.Scheduled })},
		allowed: true, reason: migration.ReasonNotMigratable,
	},
	"if possible, not migratable while it moves": {
		guest: []func(*Candidate){strategy(ifPossible), notMigratable, state("m", hasStarted)}, reason: reasonEvictionUnderWay, says: "in progress",
	},
	"if possible, not migratable where it has moved to": {
		guest: []func(*Candidate){strategy(ifPossible), notMigratable, state("m", hasCompleted)}, allowed: true, reason: migration.ReasonNotMigratable,
	},
	"S14/121 External, not migratable": {guest: []func(*Candidate){external, notMigratable}, reason: ReasonEvictionBegun, mark: toLeave},
	"S14/121 External, asked before":   {guest: []func(*Candidate){external, notMigratable, marked(sourceNode)}, reason: reasonEvictionUnderWay, says: triggered},
	"S14/121 the Pod it moves to": {
		pod: func(p *corev1.Pod) { p.Spec.NodeName = targetNode }, reason: reasonNotOnNode, says: "Eviction request for target Pod",
	},
	"a Pod on no node, of a guest on none": {
		guest: []func(*Candidate){runsOn("")}, pod: func(p *corev1.Pod) { p.Spec.NodeName = "" }, reason: reasonNotOnNode,
	},
	"asked to leave where it is not any more": {guest: []func(*Candidate){marked("before")}, reason: ReasonEvictionBegun, mark: toLeave},
	"by a descheduler": {
		descheduler: true, reason: ReasonEvictionBegun, says: triggered, mark: &EvictionMark{Node: sourceNode, Source: SourceDescheduler},
	},
	"by a person, after a descheduler": {
		guest: []func(*Candidate){marked(sourceNode), byDescheduler}, reason: reasonEvictionUnderWay, says: "Evacuation in progress: " + triggered, mark: toLeave,
	},
	"by a descheduler, after a descheduler": {
		guest: []func(*Candidate){marked(sourceNode), byDescheduler}, descheduler: true, reason: reasonEvictionUnderWay, says: triggered,
	},
	"by a descheduler, after a person": {
		guest: []func(*Candidate){marked(sourceNode)}, descheduler: true, reason: reasonEvictionUnderWay, says: triggered,
	},
	"cooldown: by a descheduler": {
		guest:       []func(*Candidate){has("m", v1.MigrationSucceeded, time.Minute, evacuates("other"), moved("other", sourceNode))},
		descheduler: true, reason: ReasonCooldown, says: "cooldown until",
	},
	"cooldown: by a person": {
		guest:  []func(*Candidate){has("m", v1.MigrationSucceeded, time.Minute, evacuates("other"), moved("other", sourceNode))},
		reason: ReasonEvictionBegun, mark: toLeave,
	},
	"no Pod of a guest":       {pod: func(p *corev1.Pod) { p.Labels = nil }, allowed: true, reason: reasonNotOurs},
	"12.24 a completed Pod":   {pod: func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }, allowed: true, reason: reasonPodEnded},
	"12.24 a failed Pod":      {pod: func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }, allowed: true, reason: reasonPodEnded},
	"12.24 plugged volumes":   {pod: attachment, guest: []func(*Candidate){strategy(v1.EvictionStrategyNone)}, reason: reasonPlugged, says: "hotplugged into VMI"},
	"12.24 of a guest's past": {pod: attachment, guest: []func(*Candidate){is(func(vmi *v1.VirtualMachineInstance) { vmi.Status.Phase = v1.Succeeded })}, allowed: true, reason: migration.ReasonGuestFinal},
	"12.24 of no guest":       {pod: attachment, none: true, allowed: true, reason: migration.ReasonGuestNotFound},
	"12.24 let go":            {pod: func(p *corev1.Pod) { attachment(p); p.Status.Phase = corev1.PodSucceeded }, allowed: true, reason: reasonPodEnded},
	"a guest that has ended":  {guest: []func(*Candidate){is(func(vmi *v1.VirtualMachineInstance) { vmi.Status.Phase = v1.Failed })}, allowed: true, reason: migration.ReasonGuestFinal},
	"no guest":                {none: true, allowed: true, reason: migration.ReasonGuestNotFound},
}

func attachment(p *corev1.Pod) { p.Labels[v1.AppLabel] = launcherpod.AttachmentApp }

func TestEvict(t *testing.T) {
	for name, tc := range evictionCases {
		t.Run(name, func(t *testing.T) {
			e := Eviction{Candidate: guestWith(tc.guest...), Descheduler: tc.descheduler, Strategy: tc.cluster, Config: migration.Config{}.WithDefaults()}
			e.Pod = e.Candidate.Pods[0]
			if tc.pod != nil {
				tc.pod(e.Pod)
			}
			if tc.none {
				e.Candidate.VMI = nil
			}
			got := Evict(e, start)
			if got.Allowed != tc.allowed || got.Reason != tc.reason || !strings.Contains(got.Message, tc.says) || got.Message == "" {
				t.Errorf("%+v", got)
			}
			if (got.Mark == nil) != (tc.mark == nil) || got.Mark != nil && *got.Mark != *tc.mark {
				t.Errorf("marks %+v", got.Mark)
			}
		})
	}
}

// TestEvictionMark_Apply is 13.30: the annotation has the key that others read.
func TestEvictionMark_Apply(t *testing.T) {
	vmi := &v1.VirtualMachineInstance{}
	EvictionMark{Node: "n", Source: SourceDescheduler}.Apply(vmi)
	if vmi.Status.EvacuationNodeName != "n" || vmi.Annotations["kubevirt.io/eviction-source"] != "descheduler" {
		t.Errorf("by a descheduler: %+v", vmi)
	}
	// A person requests what a descheduler has requested: it is no longer a descheduler's request alone.
	EvictionMark{Node: "m"}.Apply(vmi)
	if vmi.Status.EvacuationNodeName != "m" || len(vmi.Annotations) != 0 {
		t.Errorf("by a person: %+v", vmi)
	}
}
