// SPDX-License-Identifier: Apache-2.0

package domain

import (
	"fmt"
	"reflect"
	"strings"
)

// fitStrings refuses characters XML cannot hold. Everything else is escaped when
// the domain is written, so no string of a user can become an element; but what
// cannot be written would be replaced without a word.
func fitStrings(c *Conversion) error {
	return fit(c, "domain", reflect.ValueOf(c.Domain))
}

func fit(c *Conversion, path string, v reflect.Value) error {
	switch v.Kind() {
	case reflect.Pointer:
		if v.IsNil() {
			return nil
		}
		return fit(c, path, v.Elem())
	case reflect.Struct:
		t := v.Type()
		for i := range v.NumField() {
			if name := t.Field(i).Name; name != "XMLName" {
				if err := fit(c, path+"."+strings.ToLower(name), v.Field(i)); err != nil {
					return err
				}
			}
		}
	case reflect.Slice:
		for i := range v.Len() {
			if err := fit(c, fmt.Sprintf("%s[%d]", path, i), v.Index(i)); err != nil {
				return err
			}
		}
	case reflect.String:
		if r, bad := unfitForXML(v.String()); bad {
			return c.Invalid("spec", fmt.Sprintf("the value for %s has the character %U, which XML cannot hold", path, r), "remove it")
		}
	}
	return nil
}
