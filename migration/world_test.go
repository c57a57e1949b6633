// SPDX-License-Identifier: Apache-2.0

package migration_test

import (
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/types"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/migration"
	"github.com/virtloom/virtloom/migration/internal/migrationworld"
)

var start = migrationworld.Start

const (
	sourceNode = migrationworld.SourceNode
	targetNode = migrationworld.TargetNode
	vmiUID     = migrationworld.VMIUID
	ourUID     = migrationworld.MigrationUID
)

// world is an API in memory with one VMI and one migration.
type world struct {
	*migrationworld.World
	t *testing.T
}

func newWorld(t *testing.T) *world {
	t.Helper()
	return &world{migrationworld.NewWorld(t), t}
}

func newMigration(name string, uid types.UID) *v1.VirtualMachineInstanceMigration {
	return migrationworld.NewMigration(name, uid)
}

// checkNamed returns the default check with the name.
func checkNamed(name string) migration.Check {
	all := migration.DefaultChecks()
	return all[slices.IndexFunc(all, func(c migration.Check) bool { return c.Name == name })]
}
