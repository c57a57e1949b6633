// SPDX-License-Identifier: Apache-2.0

package migrationsim

import (
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/migration"
)

// An action that is not simulated is reported for its migration; the others continue.
func TestUnknownAction_AffectsOneVMI(t *testing.T) {
	s := NewSim(Options{})
	s.AddNode(NewNode("a", "16", "64Gi"))
	s.AddNode(NewNode("b", "16", "64Gi"))
	for _, name := range []string{"odd", "even"} {
		key := types.NamespacedName{Namespace: "ns", Name: name}
		if err := s.AddGuest(NewGuest(key, "a", "1", "1Gi")); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Migrate(key); err != nil {
			t.Fatal(err)
		}
	}
	if err := (executor{s}).do(s.all[0], migration.Action{Verb: "Teleport"}); err == nil {
		t.Error("an unknown action succeeds")
	}
	begin := s.Now()
	if err := s.RunAll(begin.Add(time.Hour)); err != nil {
		t.Fatal(err)
	}
	r := s.Result()
	if m := r.Migrations[0]; m.Reason != migration.ReasonUnsupported || !strings.Contains(m.Message, "Teleport") || !m.Ended.IsZero() {
		t.Errorf("%s: %s: %s", m.Phase, m.Reason, m.Message)
	}
	if m := r.Migrations[1]; m.Phase != v1.MigrationSucceeded {
		t.Errorf("the other one: %s: %s: %s", m.Phase, m.Reason, m.Message)
	}
	if s.Now().After(begin.Add(time.Minute)) {
		t.Errorf("it was waited for until %s", s.Now())
	}
}
