// SPDX-License-Identifier: Apache-2.0

package instancetype_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/vm/instancetype"
)

// A syncRow is what is written for a VM.
type syncRow struct {
	vm      *v1.VirtualMachine
	objects objects
	policy  instancetype.Policy
	// create are the names of revisions to create, refs those that the status gets, obsolete those that are deleted.
	create, refs, obsolete string
	needs, reason, says    string
	// expanded is the JSON of the domain of the expanded VM.
	expanded string
}

func revisionName(r *v1.InstancetypeStatusRef) string {
	if r == nil || r.ControllerRevisionRef == nil {
		return "-"
	}
	return r.ControllerRevisionRef.Name
}

func (row syncRow) run(t *testing.T) {
	before := row.vm.DeepCopy()
	change, needs, err := instancetype.Sync(row.vm, row.objects, row.policy, instancetype.Cluster{})
	if diff := cmp.Diff(before, row.vm); diff != "" {
		t.Errorf("the VM changed:\n%s", diff)
	}
	checkError(t, err, row.reason, row.says)
	if got := spell(needs); got != row.needs {
		t.Errorf("needs %q, want %q", got, row.needs)
	}
	if row.needs != "" || row.says != "" {
		return
	}
	var create []string
	for _, rev := range change.Create {
		create = append(create, rev.Name)
	}
	got := []string{strings.Join(create, " "), revisionName(change.InstancetypeRef) + " " + revisionName(change.PreferenceRef), spell(change.Obsolete)}
	if diff := cmp.Diff([]string{row.create, row.refs, row.obsolete}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if (change.Expanded != nil) != (row.expanded != "") {
		t.Fatalf("expanded: %v", change.Expanded)
	}
	if row.expanded != "" {
		if change.Expanded.Spec.Instancetype != nil || change.Expanded.Status.InstancetypeRef != nil {
			t.Error("the matcher is left")
		}
		if diff := cmp.Diff(parsed(t, row.expanded), pick(t, change.Expanded, "spec template spec domain")); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	}
}

func TestSync(t *testing.T) {
	for _, rows := range []map[string]syncRow{syncStore(t), syncUpgrade(t), syncExpand()} {
		for name, row := range rows {
			t.Run(name, row.run)
		}
	}
}

func syncStore(t *testing.T) map[string]syncRow {
	live := objects{largeRef: large(4, "1Gi"), revRef: nil}
	with := func(rev *appsv1.ControllerRevision) objects { return objects{largeRef: large(4, "1Gi"), revRef: rev} }
	same := revisionOf(t, newVM(), revRef.Name, "v1beta1", large(4, "1Gi"))
	taken := same.DeepCopy()
	taken.OwnerReferences[0].UID = "another"
	conflicting := newVM(func(vm *v1.VirtualMachine) { vm.Spec.Template.Spec.Domain.CPU = &v1.CPU{Cores: 2} })
	long := newVM(func(vm *v1.VirtualMachine) { vm.Name = strings.Repeat("x", 240) })
	const at = "vm-large-v1beta1-uid-large-3"
	return map[string]syncRow{
		"6.1 no matcher":               {vm: newVM(func(vm *v1.VirtualMachine) { vm.Spec.Instancetype = nil }), refs: "- -"},
		"6.1 the object is read":       {vm: newVM(), needs: largeRef.String()},
		"6.3a then its revision":       {vm: newVM(), objects: objects{largeRef: large(4, "1Gi")}, needs: revRef.String()},
		"6.3a created and recorded":    {vm: newVM(), objects: live, create: at, refs: at + " -"},
		"6.3a both in one patch":       {vm: newVM(withPreference), objects: objects{largeRef: large(4, "1Gi"), revRef: nil, linuxRef: linux(prefSpec{}), linuxRev: nil}, create: at + " " + linuxRev.Name, refs: at + " " + linuxRev.Name},
		"6.3a it exists, equal":        {vm: newVM(), objects: with(same), refs: at + " -"},
		"6.3a it exists, different":    {vm: newVM(), objects: with(revisionOf(t, newVM(), revRef.Name, "v1beta1", large(5, "1Gi"))), reason: "FailedCreate", says: "found existing ControllerRevision with unexpected data: " + at},
		"6.3a it is another VM's":      {vm: newVM(), objects: with(taken), reason: "FailedCreate", says: "error encountered while storing instancetype.kubevirt.io controllerRevisions: found existing ControllerRevision"},
		"6.3a recorded already":        {vm: newVM(stored("large", at)), objects: objects{revRef: same}, refs: at + " -"},
		"6.3a another name: anew":      {vm: newVM(stored("small", "old")), objects: live, create: at, refs: at + " -"},
		"6.3a recorded, but lost":      {vm: newVM(stored("large", at)), objects: live, create: at, refs: at + " -"},
		"6.3a revisionName wins":       {vm: newVM(chosen, stored("large", at)), objects: objects{chosenRef: revisionOf(t, newVM(), "chosen", "v1beta1", large(6, "1Gi"))}, refs: "chosen -"},
		"6.3a conflicts: nothing":      {vm: conflicting, objects: live, reason: "FailedCreate", says: "storing instancetype.kubevirt.io controllerRevisions: VM conflicts with instancetype spec in fields: [spec.template.spec.domain.cpu.cores]"},
		"6.1 reason of the object":     {vm: newVM(), objects: objects{largeRef: nil}, reason: "FailedFindInstancetype", says: "not found"},
		"6.3a (better: name too long)": {vm: long, objects: live, reason: "FailedCreate", says: "use a shorter name for the VirtualMachine or the VirtualMachineClusterInstancetype"},
	}
}

func syncUpgrade(t *testing.T) map[string]syncRow {
	oldRef := ref{Kind: instancetype.KindRevision, Namespace: "ns", Name: "vm-large-uid-large-3"}
	old := revisionOf(t, newVM(), oldRef.Name, "v1alpha1", large(4, "1Gi"))
	broken := old.DeepCopy()
	broken.Data.Raw = []byte("{")
	byUser := newVM(func(vm *v1.VirtualMachine) { vm.Spec.Instancetype.RevisionName = oldRef.Name })
	foreign := old.DeepCopy()
	foreign.OwnerReferences = nil
	return map[string]syncRow{
		"6.3c an old revision is stored anew":    {vm: newVM(stored("large", oldRef.Name)), objects: objects{oldRef: old, revRef: nil}, create: revRef.Name, refs: revRef.Name + " -"},
		"6.3c after a crash the new one is used": {vm: newVM(stored("large", oldRef.Name)), objects: objects{oldRef: old, revRef: revisionOf(t, newVM(), revRef.Name, "v1beta1", large(4, "1Gi"))}, refs: revRef.Name + " -"},
		"6.3c it cannot be read":                 {vm: newVM(stored("large", oldRef.Name)), objects: objects{oldRef: broken}, reason: "FailedFindInstancetype", says: "holds no instance type or preference"},
		"6.3c that of a user, not the VM's":      {vm: byUser, objects: objects{oldRef: foreign}, refs: oldRef.Name + " -"},
	}
}

func syncExpand() map[string]syncRow {
	live := objects{largeRef: large(2, "1Gi")}
	const expanded = `{"cpu":{"sockets":2,"cores":1,"threads":1},"memory":{"guest":"1Gi"},"resources":{},"devices":{"interfaces":[{"name":"default","bridge":{}}]}}`
	const at = "vm-large-v1beta1-uid-large-3"
	conflicting := newVM(func(vm *v1.VirtualMachine) { vm.Spec.Template.Spec.Domain.CPU = &v1.CPU{Cores: 2} })
	return map[string]syncRow{
		"6.3b expand":                        {vm: newVM(), objects: live, policy: instancetype.Expand, expanded: expanded, refs: "- -"},
		"6.3b expandAll, stored already":     {vm: newVM(stored("large", at)), objects: objects{revRef: nil, largeRef: large(2, "1Gi")}, policy: instancetype.ExpandAll, expanded: expanded, refs: "- -", obsolete: "ControllerRevision ns/" + at},
		"6.3b expand with conflicts":         {vm: conflicting, objects: live, policy: instancetype.Expand, reason: "FailedCreate", says: "VM conflicts with instancetype spec"},
		"6.3b expand, but stored: unchanged": {vm: newVM(stored("large", at)), objects: objects{revRef: nil, largeRef: large(2, "1Gi")}, policy: instancetype.Expand, create: at, refs: at + " -"},
	}
}
