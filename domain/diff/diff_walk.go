// SPDX-License-Identifier: Apache-2.0

package diff

import (
	"encoding/xml"
	"fmt"
	"reflect"
	"strconv"
	"strings"

	"k8s.io/utils/ptr"
	"libvirt.org/go/libvirtxml"

	"github.com/virtloom/virtloom/domain/internal/xmlspec"
)

// triple is one part of the desired, the last applied and the running domain. last and live are
// invalid if unknown.
type triple struct{ want, last, live reflect.Value }

// walk compares one part of the three domains with everything below it. It keeps the path as Go
// fields, which become text for differences only.
//
// The walk goes along the Go types of libvirtxml instead of a list of fields, so that a field that a
// new version of it adds is compared from then on. It is the hot path of every pass over
// every VMI: most parts are left out by cannotDiffer before anything is allocated for them.
type walk struct {
	c *comparison
	// device is the field of the device the part belongs to, empty for other parts.
	device string
	// plugged says that the device was hotplugged after the start. It is not in last, so that all
	// its values are compared with the running domain.
	plugged bool
	// skip reports whether a part is not compared for this device.
	skip func(path string) bool
	path []pathStep
}

var addressType = reflect.TypeFor[*libvirtxml.DomainAddress]()

// pathStep is a field of the path: its type and index.
type pathStep struct {
	in    reflect.Type
	field int
}

func (w *walk) compare(n *node, v triple) {
	if n.below == nil && n.rule.class == "" {
		return
	}
	switch v.want.Kind() {
	case reflect.Struct:
		w.structs(n, v)
	case reflect.Pointer:
		w.pointers(n, v)
	case reflect.Slice:
		w.slices(n, v)
	default:
		w.leaves(n, v)
	}
}

// xmlName is the type of the name field of every libvirtxml element.
var xmlName = reflect.TypeFor[xml.Name]()

func (w *walk) structs(n *node, v triple) {
	t := v.want.Type()
	for i := range t.NumField() {
		next := n.child(i)
		part := triple{want: v.want.Field(i)}
		if next.own || part.want.Type() == addressType || part.want.Type() == xmlName {
			continue // addresses are compared by address
		}
		if v.last.IsValid() {
			part.last = v.last.Field(i)
		}
		if v.live.IsValid() {
			part.live = v.live.Field(i)
		}
		if w.cannotDiffer(next, part) {
			continue
		}
		w.path = append(w.path, pathStep{t, i})
		w.compare(next, part)
		w.path = w.path[:len(w.path)-1]
	}
}

// cannotDiffer reports whether a part need not be compared. That holds for most parts: those that
// are unset in want, and those that are compared with last only, if it is unknown.
func (w *walk) cannotDiffer(n *node, v triple) bool {
	known := v.last.IsValid()
	if !known && !n.live && !w.plugged {
		return true
	}
	// What is unset in the desired domain was never asked for: whatever the running one has there is
	// an addition of the hypervisor. Two cases remain: the value was asked for before, that is, it is
	// set in last, or the rule says that unset is a value.
	return v.want.IsZero() && (!known || v.last.IsZero()) && (!n.exact || !v.live.IsValid() || v.live.IsZero())
}

// pointers compares the targets of pointers. A target that is missing on one side counts as empty,
// so that differences are reported for its parts; if the other one is empty, its presence is the
// difference.
func (w *walk) pointers(n *node, v triple) {
	// <driver/> and no driver are the same to libvirt, but not to Go.
	before := len(w.c.found)
	elem := func(p reflect.Value) reflect.Value {
		switch {
		case !p.IsValid():
			return p
		case p.IsNil():
			return reflect.Zero(p.Type().Elem())
		}
		return p.Elem()
	}
	if v.want.Type().Elem().Kind() != reflect.Struct {
		w.scalars(n, v)
		return
	}
	w.compare(n, triple{elem(v.want), elem(v.last), elem(v.live)})
	// A difference in the parts says more than "present" and "absent" would.
	if len(w.c.found) > before {
		return
	}
	present := func(p reflect.Value) reflect.Value {
		if !p.IsValid() {
			return p
		}
		return reflect.ValueOf(!p.IsNil())
	}
	w.leaves(n, triple{present(v.want), present(v.last), present(v.live)})
}

// scalars compares optional numbers: unset is not zero.
func (w *walk) scalars(n *node, v triple) {
	text := func(p reflect.Value) reflect.Value {
		switch {
		case !p.IsValid():
			return p
		case p.IsNil():
			return reflect.ValueOf("")
		}
		return reflect.ValueOf(fmt.Sprint(p.Elem().Interface()))
	}
	w.leaves(n, triple{text(v.want), text(v.last), text(v.live)})
}

// slices compares lists: devices by alias, everything else by position.
func (w *walk) slices(n *node, v triple) {
	last, live := w.pair(v.want, v.last), w.pair(v.want, v.live)
	for i := range v.want.Len() {
		part := triple{want: v.want.Index(i), last: last.of(i), live: live.of(i)}
		if keyOf(part.want) == ignored {
			continue
		}
		// libvirt adds it to a definition that does not name it.
		if last.missing(i) && keyOf(part.want) == rootBus {
			continue
		}
		if last.missing(i) {
			w.differ(n, true, "present", "absent")
			continue
		}
		// Where last counts, an element that only the running domain lacks has been dropped or merged
		// by the hypervisor, which is its own affair.
		if n.rule.live && live.missing(i) {
			w.differ(n, false, "present", "absent")
			continue
		}
		w.compare(n, part)
	}
	// Only last is asked for elements that are no longer wanted: the running domain has devices that
	// libvirt adds, such as controllers and the balloon.
	if last.left > 0 {
		w.differ(n, true, "absent", "present")
	}
}

// pairing maps the elements of the desired list to those of another list.
type pairing struct {
	list reflect.Value
	// at holds the index in list for each desired element, -1 for none.
	at []int
	// left is the number of unmatched elements of list.
	left int
}

func (p pairing) missing(i int) bool { return p.list.IsValid() && p.at[i] < 0 }

func (p pairing) of(i int) reflect.Value {
	if !p.list.IsValid() || p.at[i] < 0 {
		return reflect.Value{}
	}
	return p.list.Index(p.at[i])
}

func (w *walk) pair(want, other reflect.Value) pairing {
	p := pairing{list: other}
	if !other.IsValid() {
		return p
	}
	// Each element of the other list serves once: of two equal ones that were asked for, one may be
	// missing, and that is a difference.
	p.at = make([]int, want.Len())
	keys, used := make([]string, other.Len()), make([]bool, other.Len())
	for j := range keys {
		keys[j] = keyOf(other.Index(j))
	}
	for i := range p.at {
		p.at[i] = -1
		key := keyOf(want.Index(i))
		// Lists are short, and equal keys, such as the empty one, must pair in order: a map would
		// not help.
		for j := range used {
			if !used[j] && keys[j] == key {
				p.at[i], used[j] = j, true
				break
			}
		}
	}
	for j, u := range used {
		if !u && keys[j] != ignored && keys[j] != rootBus {
			p.left++
		}
	}
	return p
}

const (
	// ignored is the key of elements that are not compared.
	ignored = "-"
	// rootBus is the key of the PCI controller that every machine has.
	rootBus = "pci0"
)

// keyOf returns the identity of a list element: the alias of a device, type and index of a
// controller, the name of a CPU feature. It is empty for all others, which are matched by position.
func keyOf(v reflect.Value) string {
	if v.Kind() != reflect.Struct || !v.CanAddr() {
		return ""
	}
	switch d := v.Addr().Interface().(type) {
	case *libvirtxml.DomainController:
		if d.Type == "pci" && ptr.Deref(d.Index, 0) > 0 {
			return ignored // PCI buses follow from the devices
		}
		return d.Type + strconv.FormatUint(uint64(ptr.Deref(d.Index, 0)), 10)
	case *libvirtxml.DomainCPUFeature:
		return d.Name
	case *libvirtxml.DomainFilesystem:
		if d.Target != nil {
			return d.Target.Dir
		}
	case *libvirtxml.DomainInput:
		return xmlspec.NameOf(d.Alias)
	case *libvirtxml.DomainWatchdog:
		return xmlspec.NameOf(d.Alias)
	}
	return ""
}

// leaves compares values without parts.
func (w *walk) leaves(n *node, v triple) {
	switch {
	case n.rule.class == "":
	case w.shows(n, v):
		if !n.rule.same(v.want, v.live) {
			w.differ(n, false, fmt.Sprint(v.want.Interface()), fmt.Sprint(v.live.Interface()))
		}
	// The rest is about what was asked for, then and now. Without a stamp nothing is known about
	// then, and guessing would report the hypervisor's additions.
	case n.rule.live || !v.last.IsValid() || n.rule.same(v.want, v.last):
	case v.live.IsValid() && !v.want.IsZero() && n.rule.same(v.want, v.live):
		// The running domain matches already, as after a migration.
	default:
		w.differ(n, true, fmt.Sprint(v.want.Interface()), fmt.Sprint(v.last.Interface()))
	}
}

// shows reports whether a value is compared with the running domain.
func (w *walk) shows(n *node, v triple) bool {
	if !v.live.IsValid() {
		return false
	}
	wished := !v.want.IsZero()
	return n.rule.live && (wished || n.rule.exact) || w.plugged && wished
}

// same compares two values of the same type.
func (r *rule) same(a, b reflect.Value) bool {
	if r.fold && a.Kind() == reflect.String {
		return strings.EqualFold(a.String(), b.String())
	}
	return a.Equal(b)
}

// differ records a difference, once per field. wish says that it is one between want and last.
func (w *walk) differ(n *node, wish bool, want, have string) {
	if n.rule.class == "" || w.skip != nil && w.skip(w.goPath()) {
		return
	}
	field := w.field(n.rule.field)
	// Many elements may map to one field of the spec. The first one is reported.
	for i := range w.c.found {
		if w.c.found[i].Class == n.rule.class && w.c.found[i].Field == field {
			return
		}
	}
	// Compare decides by this whether the second, expensive comparison is needed.
	w.c.byWish = w.c.byWish || wish
	w.c.add(n.rule.class, field, want, have, n.rule.reason)
}

// field returns the path in the spec, or the libvirt element, of the current part.
func (w *walk) field(rule string) string {
	switch {
	case rule == "":
		return w.element()
	case rule == "." && w.pathEndsAtDevice():
		return w.device
	case rule == ".":
		return w.device + "." + w.lastElement()
	case rule[0] == '.':
		return w.device + rule
	}
	return rule
}

// pathEndsAtDevice reports whether the part is the kind of the device.
func (w *walk) pathEndsAtDevice() bool {
	return len(w.path) == 0 || w.path[len(w.path)-1].in.Field(w.path[len(w.path)-1].field).Name == "Device"
}

// goPath returns the path of the part within its device, by Go field names.
func (w *walk) goPath() string {
	var names []string
	for _, s := range w.path {
		names = append(names, s.in.Field(s.field).Name)
	}
	return strings.Join(names, ".")
}

// element returns the path of the part by libvirt names: domain.os.acpi.
func (w *walk) element() string {
	out := "domain"
	if w.device != "" {
		out = w.device
	}
	for _, s := range w.path {
		if name := elementName(s); name != "" {
			out += "." + name
		}
	}
	return out
}

func (w *walk) lastElement() string {
	for i := len(w.path) - 1; i >= 0; i-- {
		if name := elementName(w.path[i]); name != "" {
			return name
		}
	}
	return ""
}

func elementName(s pathStep) string {
	f := s.in.Field(s.field)
	name, _, _ := strings.Cut(f.Tag.Get("xml"), ",")
	if i := strings.LastIndexByte(name, ' '); i >= 0 {
		name = name[i+1:]
	}
	switch {
	case name == "-":
		return strings.ToLower(f.Name)
	case name == "" && strings.Contains(f.Tag.Get("xml"), "chardata"):
		return ""
	case name == "":
		return strings.ToLower(f.Name)
	}
	return name
}
