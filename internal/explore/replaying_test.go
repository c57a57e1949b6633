// SPDX-License-Identifier: Apache-2.0

package explore

import (
	"fmt"
	"slices"
	"strings"
)

// replay runs scripts. A line is an action, or one of these; what follows a # is a
// comment:
//
//	settle                   the world goes on without faults until it rests
//	until NAME=VALUE ...     the same until these facts hold
//	WHO sees everything      all that the process's watches have for it
//	WHO finishes its pass    all that it writes is answered
//	expect NAME=VALUE ...    facts, all of which must hold
//	never ACTION             the action is not possible
type replay struct {
	m *machine
	w world
}

func (r *replay) run(script string) error {
	n := 0
	for line := range strings.Lines(script) {
		n++
		text, _, _ := strings.Cut(line, "#")
		if text = strings.TrimSpace(text); text == "" {
			continue
		}
		if err := r.line(text); err != nil {
			return fmt.Errorf("line %d: %s: %w", n, text, err)
		}
	}
	return nil
}

func (r *replay) line(text string) error {
	if text == "settle" {
		return r.settle()
	}
	if what, is := strings.CutPrefix(text, "until "); is {
		return r.until(what)
	}
	if what, is := strings.CutPrefix(text, "expect "); is {
		return r.expect(what)
	}
	if who, is := strings.CutSuffix(text, " sees everything"); is {
		return r.everything(slices.Index(procNames[:], who))
	}
	if who, is := strings.CutSuffix(text, " finishes its pass"); is {
		return r.finish(slices.Index(procNames[:], who))
	}
	text, never := strings.CutPrefix(text, "never ")
	a, ok := parseAction(text)
	if !ok {
		return fmt.Errorf("there is no such line")
	}
	r.w.focus = -1
	switch possible := slices.Contains(r.m.enabled(&r.w, nil), a); {
	case possible == never:
		return fmt.Errorf("that this is possible is %t", possible)
	case never:
		return nil
	}
	return r.act(a)
}

func (r *replay) act(a action) error {
	if r.m.apply(&r.w, a); r.m.broken != "" {
		return fmt.Errorf("broken: %s", r.m.broken)
	}
	r.w.focus = -1
	return nil
}

// everything delivers all events that wait for a process.
func (r *replay) everything(p int) error {
	if p < 0 {
		return fmt.Errorf("there is no such process")
	}
	for s := range slotCount {
		for r.w.procs[p].waiting(s) > 0 {
			if err := r.act(action{does: sees, who: uint8(p), what: uint8(s)}); err != nil {
				return err
			}
		}
	}
	return nil
}

// finish answers what a process writes, until its pass is over.
func (r *replay) finish(p int) error {
	if p < 0 {
		return fmt.Errorf("there is no such process")
	}
	for r.w.procs[p].doing.stage == asking {
		if err := r.act(action{does: answered, who: uint8(p)}); err != nil {
			return err
		}
	}
	return nil
}

func (r *replay) settle() error { return r.m.settleDown(&r.w, nil) }

// until lets the world go on until facts hold, however often time passes.
func (r *replay) until(what string) error {
	if err := r.m.settleDown(&r.w, func(*world) bool { return r.expect(what) == nil }); err != nil {
		return err
	}
	return r.expect(what)
}

// expect compares facts: words name=value, all of which must hold.
func (r *replay) expect(what string) error {
	have := facts(&r.w)
	for _, f := range strings.Fields(what) {
		name, _, _ := strings.Cut(f, "=")
		if got, known := have[name]; !known {
			return fmt.Errorf("there is no fact %q", name)
		} else if want := f[len(name)+1:]; got != want {
			return fmt.Errorf("%s is %q, want %q", name, got, want)
		}
	}
	return nil
}

// facts is what scripts can ask for.
func facts(w *world) map[string]string {
	f := map[string]string{"a": domainNames[w.nodes[nodeA].domain], "b": domainNames[w.nodes[nodeB].domain]}
	f["seat"] = w.past.seat.String()
	if w.past.seat == nowhere {
		f["seat"] = "none"
	}
	pods := 0
	for s, o := range w.api {
		f[slot(s).String()] = o.fact()
		if o != nil && o.slot.isPod() {
			pods++
		}
	}
	f["pods"] = fmt.Sprint(pods)
	if o := w.api[slotVM]; o != nil {
		f["printable"], f["requests"] = string(o.vm.obj.Status.PrintableStatus), fmt.Sprint(len(o.vm.obj.Status.StateChangeRequests))
	}
	f["guests"] = fmt.Sprint(w.uids[slotVMI])
	v := w.api[slotVMI]
	if v == nil {
		return f
	}
	l := v.vmi.lease
	f["lease"], f["holder"], f["target"] = string(l.State), l.Holder, l.Target
	f["cause"], f["responsible"], f["stalled"] = string(l.Cause), strings.ReplaceAll(string(l.Responsible()), " ", "-"), fmt.Sprint(l.Stalled)
	f["epoch"], f["left"] = fmt.Sprint(l.Epoch), "none"
	if l.Deadline != nil {
		f["left"] = l.Deadline.Sub(clockAt(w.now)).String()
	}
	return f
}

// fact is what a script can ask for of an object.
func (o *object) fact() string {
	switch {
	case o == nil:
		return "none"
	case o.final() != unfinished:
		return [...]string{succeeded: "succeeded", failed: "failed"}[o.final()]
	case o.deleting:
		return "deleting"
	case o.slot.isPod() && o.node != nowhere:
		return o.node.String()
	default:
		return "there"
	}
}

// describe prints all facts.
func describe(w *world) string {
	f := facts(w)
	out := make([]string, 0, len(f))
	for name, value := range f {
		out = append(out, name+"="+value)
	}
	slices.Sort(out)
	return strings.Join(out, " ")
}
