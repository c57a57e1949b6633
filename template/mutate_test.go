// SPDX-License-Identifier: Apache-2.0

package template_test

import (
	"math"
	"reflect"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/virtloom/virtloom/template"
)

// mutator mutates a value as determined by a series of bytes. Equal bytes result in equal mutations.
type mutator struct{ choices []byte }

// maxChanges limits the changes of one value, so that part of it is left.
const maxChanges = 24

func (m *mutator) next() int {
	if len(m.choices) == 0 {
		return 0
	}
	b := m.choices[0]
	m.choices = m.choices[1:]
	return int(b)
}

// of returns a choice below n.
func (m *mutator) of(n int) int {
	choice := m.next()
	if n > 256 {
		choice = choice<<8 | m.next()
	}
	return choice % n
}

// mutate mutates a copy of an input until the choices are used up. Most changes are in the VMI.
func (m *mutator) mutate(in template.Input) template.Input {
	in = deepCopy(reflect.ValueOf(in), nil).Interface().(template.Input)
	for range maxChanges {
		if len(m.choices) == 0 {
			break
		}
		switch part := m.of(16); {
		case in.VMI == nil || part >= 14:
			m.change(reflect.ValueOf(&in).Elem())
		case part == 13:
			m.change(reflect.ValueOf(&in.VMI.Status).Elem())
		case part == 12:
			m.change(reflect.ValueOf(&in.VMI.ObjectMeta).Elem())
		case part == 11:
			m.change(reflect.ValueOf(&in.Config).Elem())
		case part == 10:
			m.change(reflect.ValueOf(&in.Facts).Elem())
		case part >= 6:
			m.change(reflect.ValueOf(&in.VMI.Spec.Domain).Elem())
		default:
			m.change(reflect.ValueOf(&in.VMI.Spec).Elem())
		}
	}
	return in
}

// change descends from a value to a random place and changes the value there.
func (m *mutator) change(v reflect.Value) {
	switch v.Kind() {
	case reflect.Pointer:
		switch {
		case v.IsNil():
			v.Set(reflect.New(v.Type().Elem()))
			m.change(v.Elem())
		case m.next() < 32:
			v.SetZero()
		default:
			m.change(v.Elem())
		}
	case reflect.Slice:
		m.changeSlice(v)
	case reflect.Map:
		m.changeMap(v)
	case reflect.Struct:
		m.changeStruct(v)
	case reflect.String:
		v.SetString(m.text(v.String()))
	case reflect.Bool:
		v.SetBool(!v.Bool())
	case reflect.Int, reflect.Int32, reflect.Int64:
		v.SetInt(m.number())
	case reflect.Uint, reflect.Uint32, reflect.Uint64:
		v.SetUint(uint64(m.number()))
	}
}

func (m *mutator) changeStruct(v reflect.Value) {
	if v.Type() == quantityType {
		odd := []string{"0", "-1", "1", "1Gi", "100m", "3n", "1e20", "-5Gi", "9223372036854775807", "123456789012345678901234567890", "1.5", "64M"}
		v.Set(reflect.ValueOf(resource.MustParse(odd[m.of(len(odd))])))
		return
	}
	if n := v.NumField(); n > 0 && v.Type() != timeType {
		if field := v.Field(m.of(n)); field.CanSet() {
			m.change(field)
		}
	}
}

// hugeList is the length of an excessive list.
const hugeList = 300

func (m *mutator) changeSlice(v reflect.Value) {
	grown := func(n int, element reflect.Value) {
		for range n {
			v.Set(reflect.Append(v, deepCopy(element, nil)))
		}
	}
	what := m.next()
	switch {
	case v.Len() == 0:
		grown(1, reflect.New(v.Type().Elem()).Elem())
		m.change(v.Index(0))
	case what < 16:
		v.SetZero()
	case what < 32:
		v.Set(reflect.MakeSlice(v.Type(), 0, 0))
	case what < 48:
		grown(1, reflect.Zero(v.Type().Elem()))
	case what < 72: // twice the same
		grown(1, v.Index(m.of(v.Len())))
	case what < 76:
		grown(hugeList, v.Index(m.of(v.Len())))
	default:
		m.change(v.Index(m.of(v.Len())))
	}
}

func (m *mutator) changeMap(v reflect.Value) {
	if v.IsNil() {
		v.Set(reflect.MakeMap(v.Type()))
	}
	keys := v.MapKeys()
	// Maps have no order; choices must have the same effect in every run.
	sortKeys(keys)
	element := reflect.New(v.Type().Elem()).Elem()
	if what := m.next(); len(keys) == 0 || what < 64 {
		key := reflect.New(v.Type().Key()).Elem()
		key.SetString(m.text(""))
		m.change(element)
		v.SetMapIndex(key, element)
		return
	} else if what < 96 {
		v.SetMapIndex(keys[m.of(len(keys))], reflect.Value{})
		return
	}
	key := keys[m.of(len(keys))]
	element.Set(deepCopy(v.MapIndex(key), nil))
	m.change(element)
	v.SetMapIndex(key, element)
}

// odd are strings that are harmful if they are not validated.
var odd = []string{
	"", " ", "x", "a/b", "../../etc", "/", "/dev/null", "a b", "A", "-", "-a", "a-", ".", "..", "a..b", "é", "\x00", "\xff\xfe", "\n", "a\nb: c",
	"\"", "{}", "[", "null", "true", "1", "-1", "0x10", "1e9", "999999999999999999999", "2Mi", "1Gi", "128974848", "host-model", "host-passthrough",
	"compute", "private", "sockets", "hotplug-disks", "guest-console-log", "virt-bin-share-dir", "default", "Require", "require", "forbid", "amd64",
	"arm64", "s390x", "ARM64", "q35", "kubevirt.io/kvm", "devices.kubevirt.io/kvm", "cpu", "memory", "example.com/", "/example", "a/b/c", "$(POD_NAME)",
	"${HOME}", "%s%d", "--flag", "ns/name", "ns/", "/name", "a=b", "a:b", "a,b", "'", "\\", "system_u:object_r:container_file_t:s0:c1,c2", "none",
	"a@sha256:4bf5122f344554c53bde2ebb8cd2b7e3d1600ad631c385a5d7cce23c7785459a", "img:latest", "localhost:5000/x", "kubevirt.io/a", "Always", "TCP",
}

// text returns an odd string, a long one, or the old one with an insertion.
func (m *mutator) text(old string) string {
	choice := m.of(len(odd) + 20)
	switch {
	case choice < len(odd):
		return odd[choice]
	case choice < len(odd)+4:
		return strings.Repeat("a", 60+m.next()*2)
	case choice < len(odd)+6:
		return strings.Repeat("long-", 1000+m.next())
	case choice < len(odd)+12:
		return string([]byte{byte(m.next()), byte(m.next()), byte(m.next())})
	}
	at := m.of(len(old) + 1)
	return old[:at] + string(rune(m.of(300))) + old[at:]
}

func (m *mutator) number() int64 {
	numbers := []int64{0, 1, -1, 2, 3, 30, 107, 1000, 65535, 65536, 70000, math.MaxInt32, math.MinInt32, math.MaxInt64, math.MinInt64, 1 << 40}
	return numbers[m.of(len(numbers))]
}
