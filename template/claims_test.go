// SPDX-License-Identifier: Apache-2.0

package template_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/virtloom/virtloom/template"
	"github.com/virtloom/virtloom/template/render"
)

// TestStages_OwnWrittenFields compares the Pod before and after each stage: it must not change fields without claiming
// them, which would bypass ownership.
func TestStages_OwnWrittenFields(t *testing.T) {
	for _, p := range corpus(t) {
		t.Run(p.name, func(t *testing.T) {
			t.Parallel()
			stageByStage(t, p.kind, p.in, func(stage string, before, after *corev1.Pod, owned []string) {
				old, now := leaves(t, before), leaves(t, after)
				for path, value := range now {
					if old[path] != value && !covered(path, owned) {
						t.Errorf("stage %s wrote %s without claiming it", stage, path)
					}
				}
				for path := range old {
					if _, there := now[path]; !there && !covered(path, owned) {
						t.Errorf("stage %s removed %s without claiming it", stage, path)
					}
				}
			})
		})
	}
}

// stageByStage renders a Pod with more and more of the stock stages, and calls visit with the Pod before and after each of
// them, and the fields that the stage owns then.
func stageByStage(t *testing.T, kind render.PodKind, in template.Input, visit func(stage string, before, after *corev1.Pod, owned []string)) {
	t.Helper()
	names := template.Default().Stages()
	upTo := make([]*template.Renderer, len(names)+1)
	upTo[len(names)] = template.Default()
	for i := len(names) - 1; i >= 0; i-- {
		var err error
		if upTo[i], err = upTo[i+1].Remove(names[i]); err != nil {
			t.Fatal(err)
		}
	}
	var before *corev1.Pod
	for i, r := range upTo {
		e, err := r.Explain(kind, in)
		if err != nil {
			t.Fatal(err)
		}
		if i > 0 {
			var owned []string
			for _, f := range e.Fields {
				if f.Stage == names[i-1] {
					owned = append(owned, f.Path)
				}
			}
			visit(names[i-1], before, e.Pod, owned)
		}
		before = e.Pod
	}
}

// leaves returns the scalars of a Pod by dotted path, with list elements named by key.
func leaves(t *testing.T, pod *corev1.Pod) map[string]string {
	t.Helper()
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(pod)
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	flatten(content, "", out)
	return out
}

func flatten(value any, at string, out map[string]string) {
	switch v := value.(type) {
	case nil:
	case map[string]any:
		for key, part := range v {
			flatten(part, join(at, key), out)
		}
	case []any:
		for i, part := range v {
			flatten(part, join(at, elementKey(at, i, part)), out)
		}
	default:
		out[at] = fmt.Sprint(v)
	}
}

func join(at, key string) string { return strings.TrimPrefix(at+"."+key, ".") }

// elementKey returns the name under which fields of an element are claimed.
func elementKey(at string, i int, element any) string {
	m, ok := element.(map[string]any)
	if !ok {
		return fmt.Sprint(i)
	}
	keys := []string{"name"}
	switch at[strings.LastIndex(at, ".")+1:] {
	case "volumeMounts":
		keys = []string{"mountPath"}
	case "volumeDevices":
		keys = []string{"devicePath"}
	case "ports":
		return fmt.Sprintf("%v/%v/%v", m["containerPort"], m["protocol"], orEmpty(m["name"]))
	case "claims":
		return fmt.Sprintf("%v/%v", m["name"], orEmpty(m["request"]))
	case "tolerations":
		return fmt.Sprintf("%v:%v:%v:%v", orEmpty(m["key"]), orEmpty(m["operator"]), orEmpty(m["value"]), orEmpty(m["effect"]))
	}
	for _, key := range keys {
		if name, ok := m[key]; ok {
			return fmt.Sprint(name)
		}
	}
	return fmt.Sprint(i)
}

func orEmpty(v any) any {
	if v == nil {
		return ""
	}
	return v
}

// covered reports whether one of the owned fields contains the leaf.
func covered(leaf string, owned []string) bool {
	return slices.ContainsFunc(owned, func(path string) bool {
		base, key, _ := strings.Cut(path, "[")
		field := strings.NewReplacer("[", ".", "]", "").Replace(path)
		switch {
		case strings.HasPrefix(path, "spec.affinity"):
			return strings.HasPrefix(leaf, base) // lists that stages share
		case strings.Contains(path, ".args["):
			return strings.HasPrefix(leaf, field[:strings.Index(field, ".args.")]+".args")
		case strings.HasSuffix(base, "ontainers") && strings.HasSuffix(key, "]") && !strings.Contains(key, "."):
			return leaf == field+".name" // the parts of a container are fields of their own
		default:
			return leaf == field || strings.HasPrefix(leaf, field+".")
		}
	})
}
