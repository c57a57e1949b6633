// SPDX-License-Identifier: Apache-2.0

package offline

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	v1 "kubevirt.io/api/core/v1"
	instancetypev1 "kubevirt.io/api/instancetype/v1beta1"

	"github.com/virtloom/virtloom/vm"
	"github.com/virtloom/virtloom/vm/instancetype"
)

// byGuests names the last step, which is that of [Default].
const byVMIs = "a default of new VirtualMachineInstances"

// shownFields is how many fields are named of each origin.
const shownFields = 4

// step is the VMI after one step of its making.
type step struct {
	from string
	tree any
}

// record adds a step. What cannot be made is no step.
func (c *Cluster) record(from string, vmi *v1.VirtualMachineInstance) {
	if tree := treeOf(vmi); tree != nil {
		c.steps = append(c.steps, step{from, tree})
	}
}

// recordSteps adds what instance type and preference do to the VMI: what it would be with less of them.
func (s *starting) recordSteps() {
	d := s.definitions
	s.c.record("preference "+d.PreferenceFrom.String(), ofTemplate(s.vm))
	for _, less := range []struct {
		from string
		of   instancetype.Definitions
	}{
		{"a default of VirtualMachines that are started", instancetype.Definitions{}},
		{"instance type " + d.InstancetypeFrom.String(), instancetype.Definitions{Instancetype: d.Instancetype, Preference: topologyOf(d.Preference)}},
		{"preference " + d.PreferenceFrom.String(), d},
	} {
		if vmi, err := vm.NewVMI(s.vm, less.of, s.config().Cluster); err == nil {
			s.c.record(less.from, vmi)
		}
	}
}

// topologyOf returns the part of a preference that decides how an instance type is applied.
func topologyOf(p *instancetypev1.VirtualMachinePreferenceSpec) *instancetypev1.VirtualMachinePreferenceSpec {
	if p == nil || p.CPU == nil {
		return nil
	}
	cpu := p.CPU.DeepCopy()
	cpu.PreferredCPUFeatures = nil
	return &instancetypev1.VirtualMachinePreferenceSpec{CPU: cpu}
}

// ofTemplate returns the VMI that a template is.
func ofTemplate(of *v1.VirtualMachine) *v1.VirtualMachineInstance {
	vmi := &v1.VirtualMachineInstance{}
	if t := of.Spec.Template.DeepCopy(); t != nil {
		vmi.Labels, vmi.Annotations, vmi.Spec = t.ObjectMeta.Labels, t.ObjectMeta.Annotations, t.Spec
	}
	return vmi
}

// From returns where the value of a field of a VMI that Start has made comes from: the template of the VM, its instance type,
// its preference or a default. The path is one of VMI, as in render.Origin.From. Parts of different origin are listed. The
// result is empty for a VMI that was read.
func (c *Cluster) From(path string) string {
	if len(c.steps) == 0 || c.VMI == nil {
		return ""
	}
	at := elements(path)
	whole := treeOf(c.VMI)
	v, there := lookup(whole, at)
	if !there {
		return "not set"
	}
	steps := append(slices.Clone(c.steps), step{byVMIs, whole})
	var origins []string
	fields := map[string][]string{}
	each(v, nil, func(below []string, _ any) {
		from := changedBy(steps, append(slices.Clone(at), below...))
		if fields[from] == nil {
			origins = append(origins, from)
		}
		fields[from] = append(fields[from], strings.Join(below, "."))
	})
	if len(origins) == 1 {
		return origins[0]
	}
	for i, from := range origins {
		origins[i] = fmt.Sprintf("%s (%s)", from, some(fields[from]))
	}
	return strings.Join(origins, "; ")
}

// changedBy returns the last step that changed a value.
func changedBy(steps []step, at []string) string {
	from := steps[len(steps)-1].from
	final, _ := lookup(steps[len(steps)-1].tree, at)
	for i := len(steps) - 2; i >= 0; i-- {
		if v, there := lookup(steps[i].tree, at); !there || !equalJSON(v, final) {
			break
		}
		from = steps[i].from
	}
	return from
}

// some names the first fields and counts the others.
func some(fields []string) string {
	if n := len(fields) - shownFields; n > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(fields[:shownFields], ", "), n)
	}
	return strings.Join(fields, ", ")
}

// treeOf returns a VMI as JSON values; nil if it has no such form.
func treeOf(vmi *v1.VirtualMachineInstance) (tree any) {
	text, err := json.Marshal(vmi)
	if err != nil || json.Unmarshal(text, &tree) != nil {
		return nil
	}
	return tree
}

func equalJSON(a, b any) bool {
	x, errX := json.Marshal(a)
	y, errY := json.Marshal(b)
	return errX == nil && errY == nil && string(x) == string(y)
}

// elements splits a path at dots and brackets; what is in brackets stays whole.
func elements(path string) (all []string) {
	for path != "" {
		if rest, found := strings.CutPrefix(path, "["); found {
			name, after, _ := strings.Cut(rest, "]")
			all, path = append(all, name), after
			continue
		}
		end := strings.IndexAny(path, ".[")
		if end < 0 {
			end = len(path)
		}
		if end > 0 {
			all = append(all, path[:end])
		}
		path = strings.TrimPrefix(path[end:], ".")
	}
	return all
}

// lookup returns the value at a path. Elements of lists are named by their names, else by index.
func lookup(v any, at []string) (any, bool) {
	for _, name := range at {
		switch of := v.(type) {
		case map[string]any:
			below, there := of[name]
			if !there {
				return nil, false
			}
			v = below
		case []any:
			i := slices.IndexFunc(of, func(item any) bool { return nameOf(item) == name })
			if n, err := strconv.Atoi(name); i < 0 && err == nil && n >= 0 && n < len(of) {
				i = n
			}
			if i < 0 {
				return nil, false
			}
			v = of[i]
		default:
			return nil, false
		}
	}
	return v, true
}

// nameOf returns the name of an element of a list; empty if it has none.
func nameOf(item any) string {
	fields, _ := item.(map[string]any)
	name, _ := fields["name"].(string)
	return name
}

// each visits all values below a value that have no parts, in order.
func each(v any, at []string, visit func(at []string, v any)) {
	switch of := v.(type) {
	case map[string]any:
		for _, name := range slices.Sorted(maps.Keys(of)) {
			each(of[name], append(slices.Clone(at), name), visit)
		}
		if len(of) > 0 {
			return
		}
	case []any:
		for i, item := range of {
			name := nameOf(item)
			if name == "" {
				name = strconv.Itoa(i)
			}
			each(item, append(slices.Clone(at), name), visit)
		}
		if len(of) > 0 {
			return
		}
	}
	visit(at, v)
}
