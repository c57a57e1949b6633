// SPDX-License-Identifier: Apache-2.0

package explore

import (
	"errors"
	"reflect"
	"strings"
	"testing"

	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/handoff"
)

// say makes the object in the world say something else.
func say(m *machine, w *world, change func(*v1.VirtualMachineInstance)) {
	vmi := w.api[slotVMI].vmi.obj.DeepCopy()
	change(vmi)
	w.store(w.api[slotVMI].with(func(o *object) { o.vmi = m.known.guest(vmi) }))
}

// leased makes an object carry the text as its lease.
func leased(text string) func(*v1.VirtualMachineInstance) {
	return func(vmi *v1.VirtualMachineInstance) { vmi.Annotations[handoff.Annotation] = text }
}

// TestRules_Violations puts worlds before the judge in which something is wrong.
func TestRules_Violations(t *testing.T) {
	for name, tc := range map[string]struct {
		script string
		spoil  func(*testing.T, *machine, *world)
		rule   string
	}{
		"nothing is wrong": {script: "settle"},
		"two run": {
			script: "settle", rule: "two domains of the guest run",
			spoil: func(_ *testing.T, _ *machine, w *world) { w.nodes[nodeB].domain = running },
		},
		"two launchers": {
			script: "settle", rule: "two launcher Pods",
			spoil: func(_ *testing.T, _ *machine, w *world) { w.store(object{slot: slotExtra1, uid: 1, owner: 1}.sealed()) },
		},
		"released while it runs": {
			script: "settle", rule: "the lease is Released while the guest lives on a",
			spoil: func(_ *testing.T, m *machine, w *world) {
				say(m, w, leased(`{"version":1,"state":"Released","epoch":2}`))
			},
		},
		"fenced while it runs": {
			script: "settle", rule: "the lease is Fenced while the guest lives on a",
			spoil: func(_ *testing.T, m *machine, w *world) {
				say(m, w, leased(`{"version":1,"state":"Fenced","epoch":2}`))
			},
		},
		"gone while it runs": {
			script: "settle", rule: "the object is gone while the guest lives on a",
			spoil: func(_ *testing.T, _ *machine, w *world) { w.vanish(w.api[slotVMI]) },
		},
		"a wait without end": {
			script: "settle\nnode b dies\nnode b is deleted\na minute passes", rule: "nobody can go on",
			spoil: func(_ *testing.T, m *machine, w *world) {
				say(m, w, leased(`{"version":1,"state":"Preparing","epoch":1,"holder":"a","target":"b","tag":"m1"}`))
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			r, err := play(t, tc.script)
			if err != nil {
				t.Fatal(err)
			}
			if tc.spoil != nil {
				tc.spoil(t, r.m, &r.w)
			}
			r.m.broken = ""
			rules{r.m}.judge(&r.w)
			if (tc.rule == "") != (r.m.broken == "") || !strings.Contains(r.m.broken, tc.rule) {
				t.Errorf("got %q, want %q", r.m.broken, tc.rule)
			}
		})
	}
}

// TestDeeds_Violations lets something be done that must not be.
func TestDeeds_Violations(t *testing.T) {
	for name, tc := range map[string]struct {
		script string
		do     func(*machine, *world)
		rule   string
	}{
		"started while it lives elsewhere": {
			script: "settle", rule: "started on b while it lives on a",
			do: func(m *machine, w *world) {
				hypervisors{m}.start(w, nodeB, task{verb: taskStart, mark: mark{epoch: 9}})
			},
		},
		"started twice": {
			script: "settle\nguest ends on a\n" + "a works on vmi\na is answered", rule: "a start is carried out twice",
			do: func(m *machine, w *world) {
				w.nodes[nodeA].domain = noDomain
				hypervisors{m}.start(w, nodeA, task{verb: taskStart, mark: mark{epoch: 1}})
			},
		},
		"moved twice": {
			script: begins + "hypervisor a fails to move the guest", rule: "a move is attempted twice",
			do: func(m *machine, w *world) {
				hypervisors{m}.migrate(w, nodeA, task{verb: taskMigrate, command: handoff.Command{Epoch: 2}, to: nodeB})
			},
		},
		"destroyed": {
			script: "settle", rule: "destroyed on a although nobody asked",
			do: func(m *machine, w *world) { hypervisors{m}.destroy(w, nodeA) },
		},
		"destroyed on demand": {
			script: "settle\nuser deletes vmi",
			do:     func(m *machine, w *world) { hypervisors{m}.destroy(w, nodeA) },
		},
		"resumed after it moved": {
			script: begins + "hypervisor a moves the guest on\nhypervisor a moves the guest on\nhypervisor a forgets the move",
			rule:   "what the guest was before it moved runs again on a",
			do: func(m *machine, w *world) {
				w.nodes[nodeA].call = call{task: task{verb: taskResume}}
				hypervisors{m}.land(w, nodeA)
			},
		},
		"its Pod deleted": {
			script: "settle", rule: "the Pod in which the guest lives is deleted",
			do: func(m *machine, w *world) {
				m.carry(w, request{verb: remove, slot: slotLauncher, uid: w.api[slotLauncher].uid})
			},
		},
		"ready without sockets": {
			script: runs + "user asks for m1\nuntil lease=Preparing", rule: "b is ready for the guest and does not listen",
			do: func(m *machine, w *world) {
				vmi := w.api[slotVMI].vmi.obj.DeepCopy()
				leased(`{"version":1,"state":"Prepared","epoch":2,"holder":"a","target":"b","tag":"m1"}`)(vmi)
				agents{m}.listen(w, agentB, w.api[slotVMI], sighted{write: m.known.guest(vmi)})
			},
		},
		"a lease that cannot be read": {
			script: "settle", rule: "the lease cannot be read",
			do: func(m *machine, w *world) {
				v := w.api[slotVMI]
				vmi := v.vmi.obj.DeepCopy()
				leased("{")(vmi)
				m.carry(w, request{
					verb: update, slot: slotVMI, uid: v.uid, base: v.rv, from: v,
					want: v.with(func(o *object) { o.vmi = m.known.guest(vmi) }),
				})
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			r, err := play(t, tc.script)
			if err != nil {
				t.Fatal(err)
			}
			r.m.broken = ""
			tc.do(r.m, &r.w)
			if (tc.rule == "") != (r.m.broken == "") || !strings.Contains(r.m.broken, tc.rule) {
				t.Errorf("got %q, want %q", r.m.broken, tc.rule)
			}
		})
	}
}

// TestRest_Violations looks at worlds at rest that are not as they should be.
func TestRest_Violations(t *testing.T) {
	for name, tc := range map[string]struct {
		spoil func(*machine, *world)
		want  string
	}{
		"all is well":     {spoil: func(*machine, *world) {}},
		"a stray domain":  {func(_ *machine, w *world) { w.nodes[nodeB].domain = incoming }, "a domain is left incoming on b"},
		"no Pod":          {func(_ *machine, w *world) { w.vanish(w.api[slotLauncher]) }, "the guest has 0 Pods"},
		"a Pod elsewhere": {func(_ *machine, w *world) { w.store(object{slot: slotTarget1, uid: 1, owner: 1, node: nodeB}.sealed()) }, "left on \"b\""},
		"an endless request": {func(m *machine, w *world) {
			w.store(object{slot: slotMove1, uid: 1, move: m.known.movement(asked(slotMove1, 0))}.sealed())
		}, "migration m1 does not end"},
		"it does not run": {func(_ *machine, w *world) { w.nodes[nodeA].domain = noDomain }, "does not run where the lease is"},
		"given up for no reason": {func(m *machine, w *world) {
			w.nodes[nodeA].domain = noDomain
			say(m, w, func(vmi *v1.VirtualMachineInstance) {
				leased(`{"version":1,"state":"Released","epoch":2}`)(vmi)
				vmi.Status.Phase = v1.Failed
			})
		}, "the guest does not come to run"},
	} {
		t.Run(name, func(t *testing.T) {
			r, err := play(t, "settle")
			if err != nil {
				t.Fatal(err)
			}
			tc.spoil(r.m, &r.w)
			err = resting{&r.w}.right()
			if (tc.want == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want %q", err, tc.want)
			}
		})
	}
}

func TestSearch_Deterministic(t *testing.T) {
	s := Scenario{Name: "repeatable", Faults: 1, lag: 2, allow: messages.plus(deletion)}
	var reports []Report
	for _, workers := range []int{1, 2, 3} {
		r, err := Search(&s, Limits{States: 6000, Settle: 50, Workers: workers})
		if err != nil {
			t.Fatal(err)
		}
		reports = append(reports, r)
	}
	for i := range reports {
		if !reflect.DeepEqual(reports[0], reports[i]) {
			t.Errorf("one worker: %s, with %d: %s", reports[0], i+1, reports[i])
		}
	}
	wild := Wild(false)
	var walks []WalkReport
	for _, workers := range []int{1, 3} {
		r, err := Walk(&wild, Walks{Count: 6, Length: 200, Seed: 7, Workers: workers})
		if err != nil {
			t.Fatal(err)
		}
		walks = append(walks, r)
	}
	if walks[0] != walks[1] {
		t.Errorf("one walker: %s, three: %s", walks[0], walks[1])
	}
}

func TestAuthorize_LastMoment(t *testing.T) {
	m := &machine{}
	vmi := wanted()
	vmi.Annotations = map[string]string{
		handoff.Annotation: `{"version":1,"state":"Owned","epoch":1,"holder":"a","open":[{"id":"start/1","kind":"start","epoch":1,"node":"a"}]}`,
	}
	g := new(memory).guest(vmi)
	if g.err != nil {
		t.Fatal(g.err)
	}
	command, _ := g.lease.Command(handoff.CommandStart)
	start := task{verb: taskStart, touches: true, command: command}
	other, bare := start, task{verb: taskDestroy, touches: true}
	other.command = handoff.Command{ID: "start/7"}
	for name, tc := range map[string]struct {
		t    task
		now  int8
		want error
	}{
		"at once":                  {start, 3, nil},
		"a minute later":           {start, 4, handoff.ErrUnconfirmed},
		"no such command":          {other, 3, handoff.ErrFenced},
		"without command":          {bare, 3, nil},
		"without command, too old": {bare, 5, handoff.ErrUnconfirmed},
		"nothing of the guest's":   {task{verb: taskMark}, 9, nil},
	} {
		if err := (agents{m}).authorize(doing{by: g, confirmed: 3}, tc.t, tc.now); !errors.Is(err, tc.want) {
			t.Errorf("%s: got %v, want %v", name, err, tc.want)
		}
	}
}
