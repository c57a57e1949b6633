// SPDX-License-Identifier: Apache-2.0

package instancetype_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/runtime"
	v1 "kubevirt.io/api/core/v1"
	api "kubevirt.io/api/instancetype"
	"kubevirt.io/api/instancetype/v1beta1"

	"github.com/virtloom/virtloom/vm/instancetype"
)

// vCPUs is what a row of TestFind expects of the instance type.
func vCPUs(d instancetype.Definitions) string {
	if d.Instancetype == nil {
		return ""
	}
	return fmt.Sprintf("%d from %s", d.Instancetype.CPU.Guest, d.InstancetypeFrom)
}

func kind(k string) func(*v1.VirtualMachine) {
	return func(vm *v1.VirtualMachine) { vm.Spec.Instancetype.Kind = k }
}

func stored(name, revision string) func(*v1.VirtualMachine) {
	return func(vm *v1.VirtualMachine) {
		vm.Status.InstancetypeRef = &v1.InstancetypeStatusRef{Name: name, ControllerRevisionRef: &v1.ControllerRevisionRef{Name: revision}}
	}
}

func chosen(vm *v1.VirtualMachine) { vm.Spec.Instancetype.RevisionName = "chosen" }

// The rules of section 6 of the specification that say which object counts.
func TestFind(t *testing.T) {
	foreign := func(rev *appsv1.ControllerRevision) *appsv1.ControllerRevision {
		rev.OwnerReferences[0].UID = "another"
		return rev
	}
	own := revisionOf(t, newVM(), "kept", "v1beta1", large(8, "8Gi"))
	keptRef := ref{Kind: instancetype.KindRevision, Namespace: "ns", Name: "kept"}
	inNamespace := ref{Kind: instancetype.KindInstancetype, Namespace: "ns", Name: "large"}
	small := &v1beta1.VirtualMachineInstancetype{Spec: typeSpec{CPU: v1beta1.CPUInstancetype{Guest: 2}}}
	for name, row := range map[string]struct {
		vm      *v1.VirtualMachine
		objects objects
		want    string
		needs   string
		reason  string
		says    string
	}{
		"6.1 no matcher":                {vm: newVM(func(vm *v1.VirtualMachine) { vm.Spec.Instancetype = nil })},
		"6.2 kind empty: cluster-wide":  {vm: newVM(), needs: "VirtualMachineClusterInstancetype large"},
		"6.2 it is there":               {vm: newVM(), objects: objects{largeRef: large(4, "4Gi")}, want: "4 from VirtualMachineClusterInstancetype large"},
		"6.2 kind in any case":          {vm: newVM(kind("virtualMachineInstanceTypes")), needs: "VirtualMachineInstancetype ns/large"},
		"6.2 namespaced":                {vm: newVM(kind("VirtualMachineInstancetype")), objects: objects{inNamespace: small}, want: "2 from VirtualMachineInstancetype ns/large"},
		"6.2 cluster kind by plural":    {vm: newVM(kind("virtualmachineclusterinstancetypes")), needs: "VirtualMachineClusterInstancetype large"},
		"6.2 another kind":              {vm: newVM(kind("Pod")), reason: "FailedFindInstancetype", says: "got unexpected kind in InstancetypeMatcher: Pod"},
		"6.1 it does not exist":         {vm: newVM(), objects: objects{largeRef: nil}, reason: "FailedFindInstancetype", says: "VirtualMachineClusterInstancetype large not found; create it, or correct spec.instancetype"},
		"6.1 preference does not exist": {vm: newVM(withPreference), objects: objects{largeRef: large(1, "1Gi"), linuxRef: nil}, reason: "FailedFindPreference", says: "VirtualMachineClusterPreference linux not found"},
		"6.1 both are asked for":        {vm: newVM(withPreference), needs: "VirtualMachineClusterInstancetype large, VirtualMachineClusterPreference linux"},
		"6.2 revisionName first":        {vm: newVM(chosen, stored("large", "kept")), needs: "ControllerRevision ns/chosen"},
		"6.2 revisionName holds it": {vm: newVM(chosen), objects: objects{chosenRef: foreign(revisionOf(t, newVM(), "chosen", "v1beta1", large(6, "1Gi")))},
			want: "6 from ControllerRevision ns/chosen"},
		"6.2 revisionName does not exist": {vm: newVM(chosen), objects: objects{chosenRef: nil}, reason: "FailedFindInstancetype",
			says: "ControllerRevision ns/chosen not found; correct spec.instancetype.revisionName"},
		"6.2 revisionName of a preference": {vm: newVM(chosen), objects: objects{chosenRef: revisionOf(t, newVM(), "chosen", "v1beta1", linux(prefSpec{}))},
			reason: "FailedFindInstancetype", says: "holds a VirtualMachineClusterPreference, not a VirtualMachineInstancetype"},
		"6.2 the stored revision":            {vm: newVM(stored("large", "kept")), objects: objects{keptRef: own}, want: "8 from ControllerRevision ns/kept"},
		"6.2 stored, of another name":        {vm: newVM(stored("large", "kept"), func(vm *v1.VirtualMachine) { vm.Spec.Instancetype.Name = "huge" }), objects: objects{keptRef: own}, needs: "VirtualMachineClusterInstancetype huge"},
		"6.2 stored, gone":                   {vm: newVM(stored("large", "kept")), objects: objects{keptRef: nil}, needs: "VirtualMachineClusterInstancetype large"},
		"6.2 (better: stored, another VM's)": {vm: newVM(stored("large", "kept")), objects: objects{keptRef: foreign(own.DeepCopy())}, needs: "VirtualMachineClusterInstancetype large"},
	} {
		t.Run(name, func(t *testing.T) {
			d, needs, err := instancetype.Find(row.vm, row.objects)
			if got := vCPUs(d); got != row.want {
				t.Errorf("found %q, want %q", got, row.want)
			}
			if got := spell(needs); got != row.needs {
				t.Errorf("needs %q, want %q", got, row.needs)
			}
			checkError(t, err, row.reason, row.says)
		})
	}
}

func spell(refs []ref) string {
	var all []string
	for _, r := range refs {
		all = append(all, r.String())
	}
	return strings.Join(all, ", ")
}

func checkError(t *testing.T, err error, reason, says string) {
	t.Helper()
	if err == nil {
		if reason+says != "" {
			t.Errorf("no error, want %q %q", reason, says)
		}
		return
	}
	got := ""
	if e := new(instancetype.Error); errors.As(err, &e) {
		got = e.Reason
	}
	if got != reason || says == "" || !strings.Contains(err.Error(), says) {
		t.Errorf("error %q with reason %q, want %q with reason %q", err, got, says, reason)
	}
}

// What each release stored is read; what none did is an error.
func TestDecode(t *testing.T) {
	encoded := `"eyJjcHUiOnsiZ3Vlc3QiOjN9LCJtZW1vcnkiOnsiZ3Vlc3QiOiIxR2kifX0="` // {"cpu":{"guest":3},"memory":{"guest":"1Gi"}}
	for name, row := range map[string]struct{ data, kind, says string }{
		"v1beta1":                {data: `{"apiVersion":"instancetype.kubevirt.io/v1beta1","kind":"VirtualMachineClusterInstancetype","spec":{"cpu":{"guest":3}}}`},
		"v1alpha2":               {data: `{"apiVersion":"instancetype.kubevirt.io/v1alpha2","kind":"VirtualMachineClusterInstancetype","spec":{"cpu":{"guest":3}}}`},
		"v1alpha1, spec encoded": {data: `{"apiVersion":"instancetype.kubevirt.io/v1alpha1","spec":` + encoded + `}`, kind: "VirtualMachineClusterInstancetype"},
		"no kind":                {data: `{"spec":{}}`, says: `kind "" is not supported`},
		"another group":          {data: `{"apiVersion":"v1","kind":"Pod"}`, says: "apiVersion v1 is not supported"},
		"a later version":        {data: `{"apiVersion":"instancetype.kubevirt.io/v9","kind":"VirtualMachineInstancetype"}`, says: "apiVersion instancetype.kubevirt.io/v9 is not supported"},
		"no JSON":                {data: `{`, says: "unexpected end of JSON input"},
		"spec no base64":         {data: `{"spec":"%"}`, kind: "VirtualMachineInstancetype", says: "illegal base64"},
		"spec no JSON":           {data: `{"spec":"e30ge30="}`, kind: "VirtualMachineInstancetype", says: "invalid character"},
		"wrong type":             {data: `{"kind":"VirtualMachinePreference","spec":{"cpu":7}}`, says: "cannot unmarshal number"},
		"empty":                  {says: "it is empty"},
	} {
		t.Run(name, func(t *testing.T) {
			rev := &appsv1.ControllerRevision{Data: runtime.RawExtension{Raw: []byte(row.data)}}
			rev.Namespace, rev.Name = "ns", "r"
			rev.Labels = map[string]string{api.ControllerRevisionObjectKindLabel: row.kind, api.ControllerRevisionObjectNameLabel: "large"}
			object, err := instancetype.Decode(rev)
			if row.says != "" {
				checkError(t, err, "", row.says)
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if o, ok := object.(*v1beta1.VirtualMachineClusterInstancetype); !ok || o.Spec.CPU.Guest != 3 {
				t.Errorf("decoded %T %v", object, object)
			}
		})
	}
}
