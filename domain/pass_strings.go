// SPDX-License-Identifier: Apache-2.0

package domain

import (
	"encoding/xml"
	"fmt"
	"reflect"
	"strings"
)

// fitStrings refuses characters XML cannot hold. Everything else is escaped when
// the domain is written, so no string of a user can become an element; but what
// cannot be written would be replaced without a word.
func fitStrings(c *Conversion) error {
	path, bad := unfit(reflect.ValueOf(c.Domain).Elem())
	if bad == nil {
		return nil
	}
	return c.Invalid("spec", fmt.Sprintf("the value for domain%s has the character %U, which XML cannot hold", path, *bad), "remove it")
}

var elementName = reflect.TypeFor[xml.Name]()

// unfit finds a character that XML cannot hold and where it is. The path is put
// together on the way back, since there hardly ever is one.
func unfit(v reflect.Value) (path string, bad *rune) {
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() {
			return unfit(v.Elem())
		}
	case reflect.Struct:
		if v.Type() == elementName {
			return "", nil
		}
		for i := range v.NumField() {
			if path, bad = unfit(v.Field(i)); bad != nil {
				return "." + strings.ToLower(v.Type().Field(i).Name) + path, bad
			}
		}
	case reflect.Slice:
		for i := range v.Len() {
			if path, bad = unfit(v.Index(i)); bad != nil {
				return fmt.Sprintf("[%d]%s", i, path), bad
			}
		}
	case reflect.String:
		if r, found := unfitForXML(v.String()); found {
			return "", &r
		}
	}
	return "", nil
}
