// SPDX-License-Identifier: Apache-2.0

package rbac_test

import (
	"context"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	v1 "kubevirt.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/virtloom/virtloom/internal/rig"
	"github.com/virtloom/virtloom/internal/rig/rigtest"
)

func between(sent, received string) func(*v1.VirtualMachineInstanceMigration) {
	return func(m *v1.VirtualMachineInstanceMigration) {
		m.Spec.SendTo = &v1.VirtualMachineInstanceMigrationSource{MigrationID: sent, ConnectURL: "192.0.2.1:9185"}
		m.Spec.Receive = &v1.VirtualMachineInstanceMigrationTarget{MigrationID: received}
	}
}

// testMigrations: they stay what they were created as, whoever asks.
func (w *world) testMigrations(t *testing.T) {
	move := func(name string, edits ...func(*v1.VirtualMachineInstanceMigration)) *v1.VirtualMachineInstanceMigration {
		m := &v1.VirtualMachineInstanceMigration{
			ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: name, Labels: map[string]string{v1.MigrationSelectorLabel: "guest"}},
			Spec:       v1.VirtualMachineInstanceMigrationSpec{VMIName: "guest"},
		}
		for _, e := range edits {
			e(m)
		}
		return m
	}
	// A policy is in force a while after it was created.
	must(t, rigtest.Poll(t.Context(), patience, func(ctx context.Context) (bool, error) {
		err := w.Create(ctx, move("probe", func(m *v1.VirtualMachineInstanceMigration) { m.Spec.VMIName = "" }), client.DryRunAll)
		return apierrors.IsInvalid(err), nil
	}))
	for name, tt := range map[string]struct {
		edit func(*v1.VirtualMachineInstanceMigration)
		want string // what the refusal says; none if empty
	}{
		"S14/1 nobody's":             {func(m *v1.VirtualMachineInstanceMigration) { m.Spec.VMIName = "" }, "spec.vmiName"},
		"S14/10 of two IDs":          {between("a", "b"), "spec.sendTo.migrationID"},
		"S14/10 of one ID":           {between("a", "a"), ""},
		"with a priority":            {func(m *v1.VirtualMachineInstanceMigration) { p := v1.PriorityUserTriggered; m.Spec.Priority = &p }, ""},
		"with selectors of its own":  {func(m *v1.VirtualMachineInstanceMigration) { m.Spec.AddedNodeSelector = map[string]string{"a": "b"} }, ""},
		"without the selector label": {func(m *v1.VirtualMachineInstanceMigration) { m.Labels = nil }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			refused(t, w.Create(t.Context(), move("created", tt.edit), client.DryRunAll), tt.want)
		})
	}
	w.testCauses(t, move)
	for name, tt := range map[string]struct {
		edit func(*v1.VirtualMachineInstanceMigration)
		want string
	}{
		"S14/11 another guest": {func(m *v1.VirtualMachineInstanceMigration) { m.Spec.VMIName = "other" }, "spec cannot be changed"},
		"S14/11 a selector":    {func(m *v1.VirtualMachineInstanceMigration) { m.Spec.AddedNodeSelector = map[string]string{"a": "b"} }, "spec cannot be changed"},
		"another label":        {func(m *v1.VirtualMachineInstanceMigration) { m.Labels[v1.MigrationSelectorLabel] = "other" }, "kubevirt.io/vmi-name"},
		"no label":             {func(m *v1.VirtualMachineInstanceMigration) { m.Labels = nil }, "kubevirt.io/vmi-name"},
		"a label of its own":   {func(m *v1.VirtualMachineInstanceMigration) { m.Labels["mine"] = "yes" }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			m := move("changed")
			must(t, w.Create(t.Context(), m))
			t.Cleanup(func() { must(t, w.Delete(context.Background(), m)) })
			next := m.DeepCopy()
			tt.edit(next)
			refused(t, w.Update(t.Context(), next), tt.want)
		})
	}
}

// testCauses: who may create one that goes before all others, or is taken for a controller's.
func (w *world) testCauses(t *testing.T, move func(string, ...func(*v1.VirtualMachineInstanceMigration)) *v1.VirtualMachineInstanceMigration) {
	priority := func(p v1.MigrationPriority) func(*v1.VirtualMachineInstanceMigration) {
		return func(m *v1.VirtualMachineInstanceMigration) { m.Spec.Priority = &p }
	}
	annotated := func(key, value string) func(*v1.VirtualMachineInstanceMigration) {
		return func(m *v1.VirtualMachineInstanceMigration) { metav1.SetMetaDataAnnotation(&m.ObjectMeta, key, value) }
	}
	user := func(name string) client.Client {
		config := w.Config(rig.UserAdmin)
		config.Impersonate = rest.ImpersonationConfig{UserName: name}
		return w.as(t, config)
	}
	// A user may do everything here, but is not in the group that nothing is kept from.
	const person = "jane"
	subjects := []rbacv1.Subject{{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: person}}
	const kubevirt, lookalike = "system:serviceaccount:kubevirt:kubevirt-controller", "system:serviceaccount:default:kubevirt-controller"
	for _, name := range []string{kubevirt, lookalike} {
		subjects = append(subjects, rbacv1.Subject{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: name})
	}
	must(t, w.Create(t.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "migrators"}, Subjects: subjects,
		RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
	}))
	await(t, "the user to have rights", func() bool {
		return user(person).Create(t.Context(), move("probe"), client.DryRunAll) == nil && user(lookalike).Create(t.Context(), move("probe"), client.DryRunAll) == nil
	})
	evacuation, update := annotated(v1.EvacuationMigrationAnnotation, nodeA), annotated(v1.WorkloadUpdateMigrationAnnotation, "")
	for name, tt := range map[string]struct {
		edit func(*v1.VirtualMachineInstanceMigration)
		want string // the denial of a user; empty if it is allowed
	}{
		"no priority":                 {func(*v1.VirtualMachineInstanceMigration) {}, ""},
		"priority user-triggered":     {priority(v1.PriorityUserTriggered), ""},
		"priority system-maintenance": {priority(v1.PrioritySystemMaintenance), ""},
		"priority system-critical":    {priority(v1.PrioritySystemCritical), "system-critical is the control plane's"},
		"an evacuation":               {evacuation, "kubevirt.io/evacuationMigration"},
		"an update":                   {update, "kubevirt.io/workloadUpdateMigration"},
		"another annotation":          {annotated("mine", "yes"), ""},
	} {
		t.Run(name, func(t *testing.T) {
			check(t, user(person).Create(t.Context(), move("created", tt.edit), client.DryRunAll), tt.want)
			check(t, user(lookalike).Create(t.Context(), move("created", tt.edit), client.DryRunAll), tt.want)
			for _, c := range []client.Client{w.Client, w.as(t, w.Config(rig.UserController)), user(kubevirt)} {
				check(t, c.Create(t.Context(), move("created", tt.edit), client.DryRunAll), "")
			}
		})
	}
	t.Run("one that is there", func(t *testing.T) {
		m := move("caused", evacuation, priority(v1.PrioritySystemCritical))
		must(t, w.Create(t.Context(), m))
		t.Cleanup(func() { must(t, w.Delete(context.Background(), m)) })
		for _, tt := range []struct {
			edit func(*v1.VirtualMachineInstanceMigration)
			want string
		}{
			{annotated("mine", "yes"), ""},
			{update, "the control plane's"},
			{annotated(v1.EvacuationMigrationAnnotation, nodeB), "the control plane's"},
			{func(m *v1.VirtualMachineInstanceMigration) { m.Annotations = nil }, "the control plane's"},
		} {
			next := m.DeepCopy()
			tt.edit(next)
			check(t, user(person).Update(t.Context(), next, client.DryRunAll), tt.want)
			check(t, w.Update(t.Context(), next, client.DryRunAll), "")
		}
	})
}

// refused checks that a request was refused as invalid, for that reason, or taken.
func refused(t *testing.T, err error, want string) {
	t.Helper()
	if want == "" {
		must(t, err)
		return
	}
	if !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), want) {
		t.Errorf("error %v, want %q", err, want)
	}
}
