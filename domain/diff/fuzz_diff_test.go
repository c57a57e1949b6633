// SPDX-License-Identifier: Apache-2.0

package diff

import (
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"

	"libvirt.org/go/libvirtxml"

	"github.com/virtloom/virtloom/domain/convert"
	"github.com/virtloom/virtloom/domain/convert/assume"
	"github.com/virtloom/virtloom/internal/refguest"
)

var rounds = flag.Int("rounds", 2000, "number of random readbacks in which no difference may be found")

// corpusDomains returns the converted VMIs of the corpus.
func corpusDomains(t testing.TB) map[string]*libvirtxml.Domain {
	t.Helper()
	guests, err := refguest.Corpus()
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]*libvirtxml.Domain{}
	for name, vmi := range guests {
		if d, err := convert.Convert(vmi, assume.Facts(vmi)); err == nil { // for the others see TestConvert_Corpus
			out[name] = d
		}
	}
	if len(out) < 90 {
		t.Fatalf("%d domains", len(out))
	}
	return out
}

// TestCompare_RandomReadback reads domains back as a hypervisor might present them, at random:
// nothing may differ from the desired domain, whether lastApplied is known, read from the metadata,
// or unknown.
func TestCompare_RandomReadback(t *testing.T) {
	domains := corpusDomains(t)
	names := slices.Sorted(maps.Keys(domains))
	r := rand.New(rand.NewPCG(3, 4))
	found := 0
	for round := range *rounds {
		name := names[round%len(names)]
		d := domains[name]
		live := readBackAtRandom(t, r, d)
		last := d
		switch r.IntN(3) {
		case 0:
			last = nil
		case 1:
			var err error
			if last, err = through(d); err != nil {
				t.Fatal(err)
			}
		}
		got, err := Compare(d, last, live)
		if err != nil {
			t.Fatal(err)
		}
		if len(got) > 0 {
			found++
			t.Errorf("round %d, %s, last applied known %t: %v", round, name, last != nil, got)
		}
		if found > 10 {
			t.Fatal("and so on")
		}
	}
	t.Logf("%d rounds over %d guests: %d with differences", *rounds, len(names), found)
}

// leaf is a value in a domain, and its path.
type leaf struct {
	path  string
	value reflect.Value
}

// leavesOf returns the values of a domain that are set. Paths have no list indexes.
func leavesOf(v reflect.Value, path string) []leaf {
	var out []leaf
	switch v.Kind() {
	case reflect.Pointer:
		switch {
		case v.IsNil():
		case v.Elem().Kind() != reflect.Struct: // optional numbers may be zero
			out = append(out, leaf{path, v.Elem()})
		default:
			out = append(out, leavesOf(v.Elem(), path)...)
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if name := v.Type().Field(i).Name; name != "XMLName" && v.Field(i).Type() != addressType {
				out = append(out, leavesOf(v.Field(i), strings.TrimPrefix(path+"."+name, "."))...)
			}
		}
	case reflect.Slice:
		for i := range v.Len() {
			out = append(out, leavesOf(v.Index(i), path)...)
		}
	default:
		if !v.IsZero() {
			out = append(out, leaf{path, v})
		}
	}
	return out
}

// alter changes the value.
func (l leaf) alter() {
	switch l.value.Kind() {
	case reflect.String:
		l.value.SetString(l.value.String() + "x")
	case reflect.Int:
		l.value.SetInt(l.value.Int() + 1)
	case reflect.Uint, reflect.Uint64:
		l.value.SetUint(l.value.Uint() + 1)
	case reflect.Bool:
		l.value.SetBool(!l.value.Bool())
	}
}

// uncounted reports whether a value is not compared by any rule, besides those whose rule says so.
func uncounted(path string, d *libvirtxml.Domain) bool {
	n, t := ruleTree, reflect.TypeFor[libvirtxml.Domain]()
	for _, name := range strings.Split(path, ".") {
		for t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice {
			t = t.Elem()
		}
		f, _ := t.FieldByName(name)
		n, t = n.child(f.Index[0]), f.Type
	}
	return n.rule.class == ""
}

// decidedElsewhere are values without a rule that are compared by other code.
var decidedElsewhere = []string{
	"OS.Type.Arch", "OS.Type.Machine", "Memory.Value", "VCPU.Value", "VCPU.Current",
	"Devices.Disks.Source.File.File", "Devices.Disks.Source.Block.Dev",
	"Devices.Interfaces.Source.Bridge.Bridge", "Devices.Interfaces.Link.State",
}

// TestCompare_FindsEveryChange changes single values of the desired domain: each must be a
// difference unless a rule says otherwise.
func TestCompare_FindsEveryChange(t *testing.T) {
	found, paths := 0, map[string]bool{}
	domains := corpusDomains(t)
	for _, name := range slices.Sorted(maps.Keys(domains)) {
		last := domains[name]
		live := readBack(t, last)
		for _, old := range leavesOf(reflect.ValueOf(last), "") {
			if paths[old.path] {
				continue // test each path once
			}
			paths[old.path] = true
			want, err := through(last)
			if err != nil {
				t.Fatal(err)
			}
			all := leavesOf(reflect.ValueOf(want), "")
			l := all[slices.IndexFunc(all, func(l leaf) bool { return l.path == old.path })]
			l.alter()
			elsewhere := slices.Contains(decidedElsewhere, l.path)
			if uncounted(l.path, want) && !elsewhere {
				continue
			}
			got, err := Compare(want, last, live)
			if l.path == "Name" {
				continue
			}
			if err != nil {
				t.Fatal(err)
			}
			cdrom := strings.HasPrefix(l.path, "Devices.Disks.Driver.") || strings.HasPrefix(l.path, "Devices.Disks.BackingStore.")
			if len(got) == 0 && !cdrom {
				t.Errorf("%s: change of %s to %v is not found", name, l.path, l.value)
			}
			for _, d := range got {
				checkDifference(t, d)
			}
			found++
		}
	}
	if found < 150 {
		t.Errorf("only %d values were changed", found)
	}
	t.Logf("%d paths, %d of them count", len(paths), found)
}

func checkDifference(t *testing.T, d Difference) {
	t.Helper()
	if d.Class == "" || d.Field == "" || d.Reason == "" {
		t.Errorf("incomplete: %+v", d)
	}
	if d.Operation != nil {
		if err := d.Operation.Validate(); err != nil || d.Class != Live {
			t.Errorf("%s: operation %+v: %v", d, d.Operation, err)
		}
	}
}

func TestRules_ValidPaths(t *testing.T) {
	if errRules != nil {
		t.Fatal(errRules)
	}
	for path, r := range ruleTable {
		switch {
		case r.class != "" && r.reason == "", r.class == "" && r != nothing, r.exact && !r.live:
			t.Errorf("rule for %q: %+v", path, r)
		case r.class == Live:
			t.Errorf("rule for %q: a rule has no operation", path)
		}
	}
	for _, path := range []string{"Nothing", "OS.Nothing", "Devices.Disks.Nothing"} {
		if _, err := compileRules(map[string]rule{path: nothing}); err == nil {
			t.Errorf("a rule for %s is accepted", path)
		}
	}
}

// FuzzDiffSteady is TestCompare_RandomReadback with random choices of the fuzzer.
func FuzzDiffSteady(f *testing.F) {
	domains := corpusDomains(f)
	names := slices.Sorted(maps.Keys(domains))
	for i := range 20 {
		f.Add(uint64(i), uint64(i*7))
	}
	f.Fuzz(func(t *testing.T, guest, seed uint64) {
		name := names[guest%uint64(len(names))]
		live := readBackAtRandom(t, rand.New(rand.NewPCG(seed, guest)), domains[name])
		if got, err := Compare(domains[name], domains[name], live); err != nil || len(got) > 0 {
			t.Errorf("%s: %v, %v", name, fmt.Sprint(got), err)
		}
	})
}
