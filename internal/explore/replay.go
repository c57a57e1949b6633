// SPDX-License-Identifier: Apache-2.0

package explore

import (
	"fmt"
	"slices"
	"strings"
)

// replay runs scripts. A line is an action, "settle", or an expectation; what
// follows a # is a comment.
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
	if what, is := strings.CutPrefix(text, "expect "); is {
		return r.expect(what)
	}
	a, ok := parseAction(text)
	if !ok {
		return fmt.Errorf("this is neither an action, nor settle, nor expect")
	}
	r.w.focus = -1
	if !slices.Contains(r.m.enabled(&r.w, nil), a) {
		return fmt.Errorf("this cannot happen here")
	}
	if r.m.apply(&r.w, a); r.m.broken != "" {
		return fmt.Errorf("broken: %s", r.m.broken)
	}
	return nil
}

func (r *replay) settle() error { return r.m.settleDown(&r.w) }

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
	if f["seat"] == "" {
		f["seat"] = "none"
	}
	for s, o := range w.api {
		name := slot(s).String()
		switch {
		case o == nil:
			f[name] = "none"
		case o.deleting:
			f[name] = "deleting"
		case slot(s).isPod() && o.node != nowhere:
			f[name] = o.node.String()
		case slot(s).isMove():
			f[name] = [...]string{"unfinished", "succeeded", "failed"}[o.final]
		default:
			f[name] = "there"
		}
	}
	pods := 0
	for s, o := range w.api {
		if o != nil && slot(s).isPod() {
			pods++
		}
	}
	f["pods"] = fmt.Sprint(pods)
	if v := w.api[slotVMI]; v != nil {
		l := v.vmi.lease
		f["lease"], f["holder"], f["target"] = string(l.State), l.Holder, l.Target
		f["cause"], f["turn"], f["stalled"] = string(l.Cause), string(l.Turn()), fmt.Sprint(l.Stalled)
		f["epoch"] = fmt.Sprint(l.Epoch)
	}
	return f
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
