// SPDX-License-Identifier: Apache-2.0

package render

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// Amount is one request or limit of a container.
type Amount struct {
	// Container is the name of the container or init container.
	Container string
	// Limit reports whether it is a limit; otherwise it is a request.
	Limit bool
	// Resource is the name of the resource.
	Resource corev1.ResourceName
	// Quantity is the amount.
	Quantity resource.Quantity
	// Origin is its origin, with the terms of the sum.
	Origin Origin
}

// Amounts returns the requests and limits of all containers in the order of the Pod, those of init containers last.
func (e *Explanation) Amounts() (all []Amount) {
	origins := make(map[string]Origin, len(e.Fields))
	for _, o := range e.Fields {
		origins[o.Path] = o
	}
	for _, list := range []struct {
		base       string
		containers []corev1.Container
	}{{fieldContainers, e.Pod.Spec.Containers}, {fieldInitContainers, e.Pod.Spec.InitContainers}} {
		for i := range list.containers {
			c := &list.containers[i]
			for _, set := range []struct {
				limit   bool
				sub     string
				amounts corev1.ResourceList
			}{{false, ".resources.requests", c.Resources.Requests}, {true, ".resources.limits", c.Resources.Limits}} {
				for _, name := range slices.Sorted(maps.Keys(set.amounts)) {
					at := field{list.base, c.Name, set.sub, string(name)}
					all = append(all, Amount{c.Name, set.limit, name, set.amounts[name], origins[at.String()]})
				}
			}
		}
	}
	return all
}

// Value returns the value of a field of the Pod as compact JSON. path is that of an Origin; the value of a container is its
// name, that of a flag among its arguments the words after it. It is empty for a field that was dropped.
func (e *Explanation) Value(path string) (string, error) {
	f := parseField(path)
	if f.isContainer() && f.name != "" {
		return quoted(f.name)
	}
	text, err := json.Marshal(e.Pod)
	if err != nil {
		return "", fmt.Errorf("template: explain %s: %w", path, err)
	}
	var tree any
	if err := json.Unmarshal(text, &tree); err != nil {
		return "", fmt.Errorf("template: explain %s: %w", path, err)
	}
	v := below(tree, f.base)
	switch {
	case f.base == fieldRequireNode && f.name != "":
		key, _, _ := strings.Cut(f.name, " ")
		v = about(v, key)
	case strings.HasPrefix(f.base, fieldAffinity+".") && f.name != "":
		v = term(v, f.name)
	case f.name != "":
		v = element(v, f.name)
	}
	v = below(v, f.sub)
	if f.item != "" {
		v = element(v, f.item)
	}
	if v == nil {
		return "", nil
	}
	return quoted(v)
}

func quoted(v any) (string, error) {
	text, err := json.Marshal(v)
	if err != nil {
		return "", fmt.Errorf("template: explain: %w", err)
	}
	return string(text), nil
}

// below returns the value at names separated by dots.
func below(v any, names string) any {
	for _, name := range strings.FieldsFunc(names, func(r rune) bool { return r == '.' }) {
		fields, ok := v.(map[string]any)
		if !ok {
			return nil
		}
		v = fields[name]
	}
	return v
}

// element returns the element of a map or list with a key.
func element(v any, key string) any {
	switch v := v.(type) {
	case map[string]any:
		return v[key]
	case []any:
		for i, item := range v {
			switch item := item.(type) {
			case string:
				if item == key {
					return wordsBefore(v[i+1:])
				}
			case map[string]any:
				if slices.Contains(keysOf(item), key) {
					return item
				}
			}
		}
	}
	return nil
}

// wordsBefore returns the words before the next flag.
func wordsBefore(words []any) any {
	end := slices.IndexFunc(words, func(w any) bool { s, ok := w.(string); return ok && strings.HasPrefix(s, "--") })
	if end >= 0 {
		words = words[:end]
	}
	return slices.Clip(words)
}

// keysOf returns the possible keys of an element of one of a Pod's lists (see setters.go). The list determines the form;
// within one list, no key equals a key of another form.
func keysOf(item map[string]any) []string {
	text := func(name string) string {
		if item[name] == nil {
			return ""
		}
		return fmt.Sprint(item[name])
	}
	switch {
	case item["mountPath"] != nil:
		return []string{text("mountPath")}
	case item["devicePath"] != nil:
		return []string{text("devicePath")}
	case item["containerPort"] != nil:
		return []string{text("containerPort") + "/" + text("protocol") + "/" + text("name")}
	case item["name"] != nil:
		return []string{text("name"), text("name") + "/" + text("request")}
	default:
		return []string{text("key") + ":" + text("operator") + ":" + text("value") + ":" + text("effect")}
	}
}

// term returns the term at an index, by which affinity terms are named.
func term(v any, index string) any {
	terms, _ := v.([]any)
	if i, err := strconv.Atoi(index); err == nil && i >= 0 && i < len(terms) {
		return terms[i]
	}
	return nil
}

// about returns the requirements on a node label.
func about(v any, key string) any {
	var found []any
	var walk func(any)
	walk = func(v any) {
		switch v := v.(type) {
		case []any:
			for _, item := range v {
				walk(item)
			}
		case map[string]any:
			if v["key"] == key {
				found = append(found, v)
				return
			}
			for _, name := range slices.Sorted(maps.Keys(v)) {
				walk(v[name])
			}
		}
	}
	walk(v)
	if len(found) == 0 {
		return nil
	}
	return found
}
