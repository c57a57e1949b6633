// SPDX-License-Identifier: Apache-2.0

package convert_test

import (
	"encoding/xml"
	"reflect"
	"testing"

	"github.com/google/go-cmp/cmp"
	"libvirt.org/go/libvirtxml"

	"github.com/virtloom/virtloom/domain/convert"
	"github.com/virtloom/virtloom/domain/convert/assume"
	"github.com/virtloom/virtloom/domain/internal/domainfixture"
)

// A converted domain equals its XML, encoded and parsed: differences are found by comparing
// structs, where anything that XML cannot express would always differ.
func TestConvert_XMLRoundTrip(t *testing.T) {
	for name, vmi := range domainfixture.Corpus(t) {
		if refusedGuests[name] != "" {
			continue
		}
		t.Run(name, func(t *testing.T) {
			d, err := convert.Convert(vmi, assume.Facts(vmi))
			if err != nil {
				t.Fatal(err)
			}
			s, err := d.Marshal()
			if err != nil {
				t.Fatal(err)
			}
			again := &libvirtxml.Domain{}
			if err := again.Unmarshal(s); err != nil {
				t.Fatal(err)
			}
			forgetNames(reflect.ValueOf(d))
			forgetNames(reflect.ValueOf(again))
			if diff := cmp.Diff(d, again); diff != "" {
				t.Errorf("(-converted +read):\n%s", diff)
			}
		})
	}
}

// forgetNames clears the element names, which only parsing sets.
func forgetNames(v reflect.Value) {
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() {
			forgetNames(v.Elem())
		}
	case reflect.Slice:
		for i := range v.Len() {
			forgetNames(v.Index(i))
		}
	case reflect.Struct:
		if v.Type() == reflect.TypeFor[xml.Name]() {
			v.SetZero()
			return
		}
		for i := range v.NumField() {
			forgetNames(v.Field(i))
		}
	}
}
