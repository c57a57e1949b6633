// SPDX-License-Identifier: Apache-2.0

package migrationctrl

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"github.com/virtloom/virtloom/migration"
	"github.com/virtloom/virtloom/migration/migrationsim"
)

func TestDrainPlan_LostNodeIsReported(t *testing.T) {
	c := newPicture()
	g := migrationsim.NewGuest(types.NamespacedName{Namespace: "ns", Name: "guest"}, "lost", "1", "1Gi")
	if c.put(migrationsim.NewSim(migrationsim.Options{}), g) {
		t.Fatal("the VMI was put on a node that does not exist")
	}
	if len(c.left) != 1 || c.left[0].Reason != migration.ReasonWaitingForGuest || !strings.Contains(c.left[0].Message, `"lost"`) {
		t.Errorf("left out are %+v", c.left)
	}
}
