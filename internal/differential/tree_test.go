// SPDX-License-Identifier: Apache-2.0

package differential

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
)

// tree is an object as field values by path.
type tree map[string]string

// keyedBy are the fields that identify list elements with names. The order of the lists in unordered is irrelevant; that of
// other lists is a value of its own.
var (
	keyedBy   = map[string]string{"containers": "name", "initContainers": "name", "volumes": "name", "env": "name", "volumeMounts": "mountPath", "ports": "name"}
	unordered = []string{"volumes", "env", "volumeMounts"}
)

// treeOfJSON flattens the JSON of a value.
func treeOfJSON(t *testing.T, v any) tree {
	t.Helper()
	text, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	var plain any
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber()
	if err := decoder.Decode(&plain); err != nil {
		t.Fatal(err)
	}
	out := tree{}
	out.json("", plain)
	return out
}

func (t tree) json(path string, v any) {
	switch v := v.(type) {
	case map[string]any:
		for key, value := range v {
			if strings.ContainsAny(key, "./") {
				t.json(path+"["+key+"]", value)
			} else {
				t.json(strings.TrimPrefix(path+"."+key, "."), value)
			}
		}
		if len(v) == 0 && path != "" {
			t[path] = "{}"
		}
	case []any:
		t.list(path, v)
	default:
		t[path] = fmt.Sprint(v)
	}
}

func (t tree) list(path string, list []any) {
	field := path[strings.LastIndex(path, ".")+1:]
	var order []string
	for i, v := range list {
		key := fmt.Sprint(i)
		if m, isMap := v.(map[string]any); isMap && keyedBy[field] != "" {
			key = fmt.Sprint(m[keyedBy[field]])
		}
		order = append(order, key)
		t.json(path+"["+key+"]", v)
	}
	if keyedBy[field] != "" && !slices.Contains(unordered, field) {
		t[path] = strings.Join(order, " ")
	}
}

// treeOfXML flattens a domain. Devices of one kind are numbered in order, or named by their alias.
func treeOfXML(t *testing.T, text string) tree {
	t.Helper()
	decoder := xml.NewDecoder(strings.NewReader(text))
	out := tree{}
	for {
		token, err := decoder.Token()
		if errors.Is(err, io.EOF) {
			return out
		}
		if err != nil {
			t.Fatal(err)
		}
		if start, is := token.(xml.StartElement); is {
			e, err := readElement(decoder, start)
			if err != nil {
				t.Fatal(err)
			}
			out.element("", e)
		}
	}
}

type element struct {
	name     string
	attrs    []xml.Attr
	text     string
	children []element
}

func readElement(d *xml.Decoder, start xml.StartElement) (element, error) {
	e := element{name: start.Name.Local, attrs: start.Attr}
	for {
		token, err := d.Token()
		if err != nil {
			return e, err
		}
		switch token := token.(type) {
		case xml.StartElement:
			child, err := readElement(d, token)
			if err != nil {
				return e, err
			}
			e.children = append(e.children, child)
		case xml.CharData:
			e.text += strings.TrimSpace(string(token))
		case xml.EndElement:
			return e, nil
		}
	}
}

// alias returns the name of a device of the spec; empty for others.
func (e *element) alias() string {
	for _, c := range e.children {
		if c.name == "alias" {
			return c.attr("name")
		}
	}
	return ""
}

func (e *element) attr(name string) string {
	for _, a := range e.attrs {
		if a.Name.Local == name {
			return a.Value
		}
	}
	return ""
}

// named are the elements that are identified by an attribute.
var named = map[string]string{"entry": "name", "feature": "name", "timer": "name", "vcpu": "id"}

func (t tree) element(path string, e element) {
	if e.text != "" || len(e.attrs)+len(e.children) == 0 {
		t[path] = e.text // the presence of an element without content is a value
	}
	for _, a := range e.attrs {
		if a.Name.Space != "xmlns" && a.Name.Local != "xmlns" {
			t[path+"@"+a.Name.Local] = a.Value
		}
	}
	count, orders := map[string]int{}, map[string][]string{}
	for _, c := range e.children {
		at := path + "/" + c.name
		switch {
		case c.alias() != "":
			orders[at] = append(orders[at], c.alias())
			at += "[" + c.alias() + "]"
		case named[c.name] != "" && c.attr(named[c.name]) != "":
			at += "[" + c.attr(named[c.name]) + "]"
		case c.name == "controller":
			at += "[" + c.attr("type") + c.attr("index") + "]"
		default:
			if count[at]++; count[at] > 1 {
				at += fmt.Sprintf("[%d]", count[at])
			}
		}
		t.element(at, c)
	}
	for at, order := range orders {
		t[at] = strings.Join(order, " ")
	}
}
