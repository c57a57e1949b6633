// SPDX-License-Identifier: Apache-2.0

package rbac_test

import (
	"context"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	v1 "kubevirt.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
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
	must(t, wait.PollUntilContextTimeout(t.Context(), 50*time.Millisecond, patience, true, func(ctx context.Context) (bool, error) {
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
