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
	path, r, bad := unfit(reflect.ValueOf(c.Domain))
	if !bad {
		return nil
	}
	return c.Invalid("spec", fmt.Sprintf("the value for domain%s has the character %U, which XML cannot hold", path, r), "remove it")
}

var xmlNameType = reflect.TypeFor[xml.Name]()

// unfit finds the first character that does not fit, and the way to it, which is
// put together on the way back only.
func unfit(v reflect.Value) (path string, r rune, bad bool) {
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() {
			return unfit(v.Elem())
		}
	case reflect.Struct:
		return unfitField(v)
	case reflect.Slice:
		for i := range v.Len() {
			if path, r, bad = unfit(v.Index(i)); bad {
				return fmt.Sprintf("[%d]%s", i, path), r, true
			}
		}
	case reflect.String:
		if s := v.String(); !printable(s) {
			r, bad = unfitForXML(s)
		}
	}
	return "", r, bad
}

func unfitField(v reflect.Value) (path string, r rune, bad bool) {
	for i := range v.NumField() {
		f := v.Field(i)
		if f.IsZero() || f.Type() == xmlNameType {
			continue
		}
		if path, r, bad = unfit(f); bad {
			return "." + strings.ToLower(v.Type().Field(i).Name) + path, r, true
		}
	}
	return "", 0, false
}

// printable is true for what nearly all strings are: ASCII that needs no closer look.
func printable(s string) bool {
	for i := range len(s) {
		if s[i] < ' ' || s[i] > '~' {
			return false
		}
	}
	return true
}
