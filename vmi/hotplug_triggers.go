// SPDX-License-Identifier: Apache-2.0

package vmi

import (
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/virtloom/virtloom/handoff"
)

// provision creates one trigger Pod for every claim that waits for its first consumer, and
// deletes the triggers of provisioned claims.
func (h *plugging) provision() {
	wanted := map[string]bool{}
	for i := range h.plugs {
		if p := &h.plugs[i]; p.state == plugUnplaced && !wanted[p.claim] {
			wanted[p.claim] = true
			h.trigger(p)
		}
	}
	for _, t := range h.triggers {
		needed := slices.ContainsFunc(slices.Collect(maps.Values(claimsOf(t))), func(c string) bool { return wanted[c] })
		if t.DeletionTimestamp == nil && !needed {
			h.do(takeAway(t, "its claim no longer needs a first consumer"))
		}
	}
}

// trigger ensures one trigger for the claim. A trigger that has ended without effect is
// retried after its retry age.
func (h *plugging) trigger(p *plug) {
	var live, ended []*corev1.Pod
	for _, t := range h.triggers {
		switch {
		case !slices.Contains(slices.Collect(maps.Values(claimsOf(t))), p.claim):
		case podLive(t):
			live = append(live, t)
		default:
			ended = append(ended, t)
		}
	}
	switch {
	case len(live) > 0:
		h.triggered(p, live[0])
		for _, t := range slices.Concat(live[1:], ended) {
			if t.DeletionTimestamp == nil {
				h.do(takeAway(t, "another Pod is the first consumer of its claim"))
			}
		}
	case len(ended) > 0:
		for _, t := range ended {
			h.out.Waits = append(h.out.Waits, h.clear(t))
		}
	case !h.unlabelled():
		h.do(Action{Verb: CreateTrigger, Pod: h.launcher, Volumes: []string{p.volume}, Fault: ReasonFailedCreate,
			Why: "claim " + p.claim + " waits for its first consumer"})
	}
}

// triggered records what a claim with a trigger waits for.
func (h *plugging) triggered(p *plug, t *corev1.Pod) {
	w := Wait{
		Reason:  ReasonPVCNotReady,
		Message: fmt.Sprintf("%s: claim %s is provisioned with %s as its first consumer", p.field, p.claim, podObject(t)),
		Object:  podObject(t), Until: "the claim is provisioned", Responsible: handoff.ByStorage,
	}
	if c := podCondition(t, corev1.PodScheduled); c != nil && c.Status == corev1.ConditionFalse {
		w.Responsible, w.Message = handoff.ByScheduler, w.Message+": "+c.Message
	}
	h.out.Waits = append(h.out.Waits, w)
}
