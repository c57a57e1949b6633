// SPDX-License-Identifier: Apache-2.0

package vmipatch

import (
	"reflect"
	"slices"

	v1 "kubevirt.io/api/core/v1"
)

// keys lists the keyed lists, by the type of their elements.
var keys = map[reflect.Type]struct {
	key string
	// with are fields that belong together: when one changes, all are tested.
	with []string
}{
	reflect.TypeFor[v1.VirtualMachineInstanceCondition]():                {key: "type", with: []string{"status", "reason", "message"}},
	reflect.TypeFor[v1.VolumeStatus]():                                   {key: "name"},
	reflect.TypeFor[v1.VirtualMachineInstanceNetworkInterface]():         {key: "name"},
	reflect.TypeFor[v1.StorageMigratedVolumeInfo]():                      {key: "volumeName"},
	reflect.TypeFor[v1.VirtualMachineInstancePhaseTransitionTimestamp](): {key: "phase"},
}

// list compares lists of both versions.
func (p *patch) list(at path, t reflect.Type, was, want []any) {
	e := elementOf(t)
	c := comparison{patch: p, at: at, t: e}
	if k, keyed := keys[e]; keyed {
		c.key, c.with = k.key, k.with
		var unique [2]bool
		c.was, unique[0] = c.elements(was)
		c.want, unique[1] = c.elements(want)
		if unique[0] && unique[1] && c.ordered() {
			c.elementwise()
			return
		}
	}
	p.same(at, t, was)
	p.put(at, want)
}

// comparison compares two keyed lists.
type comparison struct {
	*patch
	at        path
	t         reflect.Type // of an element
	key       string
	with      []string
	was, want []element
}

type element struct {
	key    string
	fields map[string]any
}

// elements returns the elements of a list, and whether their keys are present and unique.
func (c *comparison) elements(list []any) ([]element, bool) {
	var all []element
	for _, v := range list {
		e := element{}
		e.fields, _ = v.(map[string]any)
		e.key, _ = e.fields[c.key].(string)
		if e.key == "" || indexOfKey(all, e.key) >= 0 {
			return nil, false
		}
		all = append(all, e)
	}
	return all, true
}

func indexOfKey(all []element, key string) int {
	return slices.IndexFunc(all, func(e element) bool { return e.key == key })
}

// ordered reports whether the remaining elements keep their order.
func (c *comparison) ordered() bool {
	last := -1
	for _, e := range c.want {
		i := indexOfKey(c.was, e.key)
		if i >= 0 && i < last {
			return false
		}
		last = max(last, i)
	}
	return true
}

// elementwise changes elements in place, then removes from the end, then adds from the front:
// so each index is valid in one of the two versions.
func (c *comparison) elementwise() {
	var gone []int
	for i, old := range c.was {
		if j := indexOfKey(c.want, old.key); j >= 0 {
			c.change(i, old, c.want[j])
		} else {
			c.same(c.at.index(i), c.t, old.fields)
			gone = append(gone, i)
		}
	}
	for _, i := range slices.Backward(gone) {
		c.remove(c.at.index(i))
	}
	added := false
	for j, e := range c.want {
		if indexOfKey(c.was, e.key) < 0 {
			c.put(c.at.index(j), e.fields)
			added = true
		}
	}
	if !added {
		return
	}
	for i, e := range c.was {
		c.test(c.at.index(i).to(c.key), e.key)
	}
	c.length(c.at, len(c.was))
}

func (c *comparison) change(i int, was, want element) {
	at := c.at.index(i)
	if reflect.DeepEqual(was.fields, want.fields) {
		return
	}
	c.test(at.to(c.key), was.key)
	for _, name := range c.with {
		f, _ := fieldOf(c.t, name)
		c.field(at.to(name), f, was.fields[name])
	}
	c.object(at, c.t, was.fields, want.fields)
}

// length tests that a non-empty list has n elements. No operation does that, so a unique
// element is appended, tested at its index, and removed.
func (p *patch) length(at path, n int) {
	mark := at.to("-")
	if p.version || p.tested[mark] {
		return
	}
	p.tested[mark] = true
	v := any("")
	p.tests = append(p.tests, op{"add", mark, &v}, op{"test", at.index(n), &v}, op{Op: "remove", Path: at.index(n)})
}
