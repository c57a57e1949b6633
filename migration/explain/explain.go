// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/handoff"
	"github.com/virtloom/virtloom/migration"
	"github.com/virtloom/virtloom/migration/placement"
	"github.com/virtloom/virtloom/migration/queue"
)

// Explanation reports where a migration stands and why: whether it is queued or stuck,
// behind what, and what ends that. Its JSON form is for programs, [Explanation.Write] for
// operators.
type Explanation struct {
	// Namespace, Migration and Guest name the migration and its VMI.
	Namespace string `json:"namespace"`
	Migration string `json:"migration"`
	VMI       string `json:"guest"`
	// At is the time of the explanation.
	At time.Time `json:"at"`
	// Phase is the phase after the next pass of the controller; Since is when the stored
	// phase was entered.
	Phase v1.VirtualMachineInstanceMigrationPhase `json:"phase"`
	Since time.Time                               `json:"since"`
	// Responsible is the component that has to act next; Reason and Message say on what.
	Responsible handoff.Responsible `json:"owner"`
	Reason      migration.Reason    `json:"reason,omitempty"`
	Message     string              `json:"message,omitempty"`
	// Deadline is when the phase is overdue; nil means never. Overdue is the reason with
	// which the migration then fails; empty if it then succeeds.
	Deadline *time.Time       `json:"deadline,omitempty"`
	Overdue  migration.Reason `json:"overdue,omitempty"`
	// Unblock is the event that lets the migration continue; empty when it waits for
	// nothing.
	Unblock string `json:"unblock,omitempty"`
	// Next are the writes that the next pass would make.
	Next []Step `json:"next,omitempty"`
	// Checks are all checks of the evaluator in order, with their findings. They are empty
	// after the handoff, when they no longer decide.
	Checks []CheckResult `json:"checks,omitempty"`
	// Queue is the place in the queue; nil when the migration is not queued.
	Queue *Place `json:"queue,omitempty"`
	// Blockers are the exhausted limits.
	Blockers []ExhaustedLimit `json:"blockers,omitempty"`
	// Policy is the policy in force; nil when none was asked for.
	Policy *PolicyStanding `json:"policy,omitempty"`
	// Options are the resolved options that differ from KubeVirt's defaults.
	Options []Option `json:"options,omitempty"`
	// Targets are the possible target nodes; nil when not evaluated, see
	// [Explanation.Aim].
	Targets *Targets `json:"targets,omitempty"`
	// Attempts are the other migrations of the VMI, the newest first.
	Attempts []Attempt `json:"attempts,omitempty"`
}

// Step is a write that a pass would make.
type Step struct {
	// Kind is the write, Why its purpose.
	Kind migration.Verb `json:"kind"`
	Why  string         `json:"why"`
}

// CheckResult is a check and its finding.
type CheckResult struct {
	// Check is the name of the check.
	Check string `json:"check"`
	// Blocked says that the check blocks, Temporary that waiting may help.
	Blocked   bool `json:"blocked"`
	Temporary bool `json:"temporary,omitempty"`
	// Reason, Message, Unblock and Object are those of [migration.Finding].
	Reason  migration.Reason `json:"reason,omitempty"`
	Message string           `json:"message,omitempty"`
	Unblock string           `json:"unblock,omitempty"`
	Object  string           `json:"object,omitempty"`
	// Until is when time alone changes the finding, as after a back-off; nil means never.
	Until *time.Time `json:"until,omitempty"`
}

// ExhaustedLimit is an exhausted limit.
type ExhaustedLimit struct {
	// Limit is the limit; Node is the node of a per-node limit.
	Limit queue.Limit `json:"limit"`
	Node  string      `json:"node,omitempty"`
	// Used and Max are the slots in use and the limit.
	Used int `json:"used"`
	Max  int `json:"max"`
	// Holders are the migrations that hold the slots, as namespace/name.
	Holders []string `json:"holders"`
}

// Place is a place in the queue.
type Place struct {
	// Position counts from 1; Waiting is the length of the queue.
	Position int `json:"position"`
	Waiting  int `json:"waiting"`
}

// Targets are the nodes as candidates for the target Pod.
type Targets struct {
	// Candidates are the nodes that no rule excludes.
	Candidates []string `json:"candidates"`
	// Summary counts all nodes by the rule that excludes them.
	Summary string `json:"summary"`
	// Remedies say which changes would make more nodes fit.
	Remedies []string `json:"remedies,omitempty"`
}

// Aim adds the result of [placement.Fit] for the migration's target Pod.
func (e *Explanation) Aim(f placement.Fitness) {
	e.Targets = &Targets{Candidates: f.Candidates, Summary: f.Text(), Remedies: f.Remedies()}
	if len(f.Candidates) > 0 {
		e.Targets.Remedies = nil
	}
}

// Attempt is another migration of the same VMI.
type Attempt struct {
	// Name is the migration's name, Phase its last phase, At when it entered that.
	Name  string                                  `json:"name"`
	Phase v1.VirtualMachineInstanceMigrationPhase `json:"phase"`
	At    time.Time                               `json:"at"`
	// Reason and Message say why it failed or what it waits for.
	Reason  migration.Reason `json:"reason,omitempty"`
	Message string           `json:"message,omitempty"`
	// SourceNode and TargetNode are the nodes of the migration, as far as they were
	// known.
	SourceNode string `json:"sourceNode,omitempty"`
	TargetNode string `json:"targetNode,omitempty"`
	// Automatic says that a controller created it: an evacuation or a workload update.
	Automatic bool `json:"automatic,omitempty"`
}

// Explain reports where the migration of the snapshot stands. It is pure and runs the code
// of the live decision, so it reports what [migration.Decide] does. Snapshot.Slot must be the answer
// of [queue.Admission.Explain], and Snapshot.Resolution that of [policy.Resolve], which a
// controller fills in only later.
func Explain(s migration.Snapshot, now time.Time) Explanation {
	found := &findings{evaluator: s.Config.Evaluator}
	if found.evaluator == nil {
		found.evaluator = migration.DefaultChecks()
	}
	s.Config.Evaluator = migration.Evaluator{{Name: "all", Judge: found.check}}
	plan := migration.Decide(s, now)
	if found.ran {
		// Those that no configuration removes come first.
		found.results = append(results(migration.Config{Evaluator: migration.Evaluator{}}.Checks().All(s, now)), found.results...)
	}
	m := s.Migration
	e := Explanation{
		Namespace: m.Namespace, Migration: m.Name, VMI: m.Spec.VMIName, At: now,
		Phase: plan.Status.Phase, Since: migration.EnteredAt(m),
		Responsible: plan.Responsible, Reason: plan.Reason, Message: plan.Message,
		Checks: found.results, Attempts: attempts(s.Others),
	}
	if e.Responsible == "" {
		e.Responsible = handoff.ByController
	}
	if !plan.Deadline.IsZero() {
		e.Deadline, e.Overdue = &plan.Deadline, plan.Overdue
	}
	for _, a := range plan.Actions {
		e.Next = append(e.Next, Step{Kind: a.Verb, Why: a.Why})
	}
	e.standing(s, plan)
	e.policy(s)
	e.Unblock = unblocks(s, &e)
	return e
}

// findings runs the checks once, however often they are evaluated, and keeps their
// findings.
type findings struct {
	evaluator migration.Evaluator
	ran       bool
	results   []CheckResult
	verdict   migration.Finding
}

// check returns the result of the whole evaluator as one check.
func (f *findings) check(s migration.Snapshot, now time.Time) migration.Finding {
	if f.ran {
		return f.verdict
	}
	f.ran = true
	all := f.evaluator.All(s, now)
	for i := range all {
		if all[i].Blocked && (!f.verdict.Blocked || f.verdict.Temporary && !all[i].Temporary) {
			f.verdict = all[i]
		}
	}
	f.results = results(all)
	return f.verdict
}

func results(all []migration.Finding) []CheckResult {
	out := make([]CheckResult, 0, len(all))
	for i := range all {
		f := &all[i]
		r := CheckResult{
			Check: f.Check, Blocked: f.Blocked, Temporary: f.Temporary,
			Reason: f.Reason, Message: f.Message, Unblock: f.Unblock, Object: f.Object,
		}
		if !f.Until.IsZero() {
			r.Until = &f.Until
		}
		out = append(out, r)
	}
	return out
}

// standing fills in what the migration waits for in queue and limits or, of a finished
// one, why it ended.
func (e *Explanation) standing(s migration.Snapshot, plan migration.Plan) {
	if f := migration.Condition(plan.Status, migration.ConditionFailed); f != nil && plan.Status.Phase == v1.MigrationFailed {
		e.Reason, e.Message = migration.Reason(f.Reason), f.Message
	}
	if plan.Status.Phase == v1.MigrationSucceeded || plan.Status.Phase == v1.MigrationFailed {
		return
	}
	for _, b := range s.Slot.Blockers {
		o := ExhaustedLimit{Limit: b.Limit, Node: b.Node, Used: b.Used, Max: b.Max, Holders: make([]string, 0, len(b.Holders))}
		for _, h := range b.Holders {
			o.Holders = append(o.Holders, h.String())
		}
		e.Blockers = append(e.Blockers, o)
	}
	if s.Slot.Position > 0 {
		e.Queue = &Place{Position: s.Slot.Position, Waiting: s.Slot.Waiting}
	}
}

// attempts returns the other migrations of the VMI, the newest first.
func attempts(others []*v1.VirtualMachineInstanceMigration) []Attempt {
	if len(others) == 0 {
		return nil
	}
	sorted := slices.Clone(others)
	slices.SortFunc(sorted, func(a, b *v1.VirtualMachineInstanceMigration) int { return migration.CompareCreated(b, a) })
	out := make([]Attempt, 0, len(sorted))
	for _, m := range sorted {
		a := Attempt{Name: m.Name, Phase: m.Status.Phase, At: migration.EnteredAt(m), Automatic: migration.Automatic(m)}
		if ms := m.Status.MigrationState; ms != nil {
			a.SourceNode, a.TargetNode = ms.SourceNode, ms.TargetNode
		}
		for _, t := range []v1.VirtualMachineInstanceMigrationConditionType{migration.ConditionFailed, migration.ConditionWaiting} {
			if c := migration.Condition(m.Status, t); c != nil && c.Status == corev1.ConditionTrue {
				a.Reason, a.Message = migration.Reason(c.Reason), c.Message
				break
			}
		}
		out = append(out, a)
	}
	return out
}
