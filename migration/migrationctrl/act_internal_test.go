// SPDX-License-Identifier: Apache-2.0

package migrationctrl

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	v1 "kubevirt.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/virtloom/virtloom/migration"
)

func TestAdopt_LongName(t *testing.T) {
	for name, labelled := range map[string]bool{"db": true, "a_/b": false, "-a": false} {
		t.Run(name, func(t *testing.T) {
			m := &v1.VirtualMachineInstanceMigration{
				ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "move"},
				Spec:       v1.VirtualMachineInstanceMigrationSpec{VMIName: name},
			}
			s := newScene(t, interceptor.Funcs{}, m)
			g := &gathered{}
			g.Migration = &v1.VirtualMachineInstanceMigration{}
			if err := s.Get(t.Context(), client.ObjectKeyFromObject(m), g.Migration); err != nil {
				t.Fatal(err)
			}
			if err := (actor{s.r}).adopt(t.Context(), g, migration.Action{}); err != nil {
				t.Fatal(err)
			}
			if err := s.Get(t.Context(), client.ObjectKeyFromObject(m), m); err != nil {
				t.Fatal(err)
			}
			if _, has := m.Labels[v1.MigrationSelectorLabel]; has != labelled || len(m.Finalizers) != 1 {
				t.Errorf("labels %v, finalizers %v", m.Labels, m.Finalizers)
			}
		})
	}
}
