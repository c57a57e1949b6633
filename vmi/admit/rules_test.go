// SPDX-License-Identifier: Apache-2.0

package admit_test

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"k8s.io/apimachinery/pkg/util/validation/field"
	v1 "kubevirt.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/virtloom/virtloom/vmi/admit"
)

// row is a VMI and the errors of a rule. Its name is the rule's, a colon and a description.
type row struct {
	guest string // merged into a VMI with 1Gi of memory
	// kubevirt is the configuration of the cluster.
	kubevirt string
	change   func(*admit.Config)
	// want are the fields with errors; empty if the rule accepts the VMI.
	want string
}

const plainGuest = "{metadata: {name: guest, namespace: default}, spec: {domain: {memory: {guest: 1Gi}, devices: {}}}}"

func gates(names string) string { return "developerConfiguration: {featureGates: [" + names + "]}" }

func (r row) config(t *testing.T) admit.Config {
	t.Helper()
	kv := parse[v1.KubeVirt](t, "{spec: {configuration: {"+r.kubevirt+"}}}")
	c := admit.ConfigFrom(kv)
	if r.change != nil {
		r.change(&c)
	}
	return c
}

func TestRules(t *testing.T) {
	rows := map[string]row{}
	for _, topic := range []map[string]row{
		metadataRows, machineRows, resourceRows, firmwareRows, diskRows, volumeRows, networkRows, deviceRows, podRows, schedulingRows,
	} {
		maps.Copy(rows, topic)
	}
	accepted, refused := map[string]bool{}, map[string]bool{}
	for name, r := range rows {
		rule, _, _ := strings.Cut(name, ":")
		accepted[rule], refused[rule] = accepted[rule] || r.want == "", refused[rule] || r.want != ""
		t.Run(name, func(t *testing.T) {
			vmi := parse[v1.VirtualMachineInstance](t, merge(t, plainGuest, r.guest))
			c := r.config(t)
			var fields []string
			for _, err := range admit.Check(rule, vmi, c) {
				complete(t, err)
				if strings.Contains(err.Detail, "feature gate") && !slices.Contains(strings.Fields(r.want), err.Field) {
					continue // not the subject of the row
				}
				fields = append(fields, err.Field)
			}
			if diff := cmp.Diff(strings.Fields(r.want), fields, cmpopts.EquateEmpty(), cmpopts.SortSlices(strings.Compare)); diff != "" {
				t.Errorf("-want +got\n%s", diff)
			}
			judge(t, vmi, c)
		})
	}
	for _, rule := range admit.Rules() {
		if !accepted[rule] || !refused[rule] {
			t.Errorf("rule %s: accepts in a row: %t, refuses: %t", rule, accepted[rule], refused[rule])
		}
		delete(accepted, rule)
	}
	for rule := range accepted {
		t.Errorf("unknown rule %s", rule)
	}
}

// complete checks that an error has field, value and remedy.
func complete(t *testing.T, err *field.Error) {
	t.Helper()
	valueless := err.Type == field.ErrorTypeRequired || err.Type == field.ErrorTypeForbidden
	if err.Field == "" || !valueless && err.BadValue == nil || !strings.Contains(err.Detail, "(") || !strings.HasSuffix(err.Detail, ")") {
		t.Errorf("lacks field, value or remedy: %#v", err)
	}
}

func parse[T any](t testing.TB, text string) *T {
	t.Helper()
	v := new(T)
	if err := yaml.UnmarshalStrict([]byte(text), v); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return v
}

// merge merges one document into another.
func merge(t testing.TB, base, over string) string {
	t.Helper()
	if over == "" {
		return base
	}
	fields := *parse[map[string]any](t, base)
	lay(fields, *parse[map[string]any](t, over))
	text, err := yaml.Marshal(fields)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func lay(base, over map[string]any) {
	for key, value := range over {
		below, isMap := base[key].(map[string]any)
		if more, too := value.(map[string]any); isMap && too {
			lay(below, more)
			continue
		}
		base[key] = value
	}
}
