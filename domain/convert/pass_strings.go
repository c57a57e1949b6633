// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"encoding/xml"
	"fmt"
	"reflect"
	"strings"

	"github.com/virtloom/virtloom/domain/internal/xmlspec"
)

// fitStrings rejects characters that XML cannot hold. All others are escaped when the domain is
// encoded, so that no user's string can become an element; but these would be replaced silently.
func fitStrings(c *Conversion) error {
	path, r, bad := unfit(reflect.ValueOf(c.Domain))
	if !bad {
		return nil
	}
	return c.Invalid("spec", fmt.Sprintf("Invalid value: domain%s contains the character %U, which XML cannot hold", path, r), "remove the character")
}

var xmlNameType = reflect.TypeFor[xml.Name]()

// unfit returns the first such character and its path, which is only built on the way back.
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
			r, bad = xmlspec.UnfitForXML(s)
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

// printable reports whether s is plain ASCII, as nearly all strings are, and needs no closer look.
func printable(s string) bool {
	for i := range len(s) {
		if s[i] < ' ' || s[i] > '~' {
			return false
		}
	}
	return true
}
