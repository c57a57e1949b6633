// SPDX-License-Identifier: Apache-2.0

package mapdriver_test

import (
	"testing"

	"github.com/virtloom/virtloom/domain/domaintest"
	"github.com/virtloom/virtloom/examples/hypervisor/mapdriver"
)

// cannot is what the hypervisor of the example declares that it cannot do.
var cannot = map[domaintest.Ability]string{}

func init() {
	for why, abilities := range map[string][]domaintest.Ability{
		"a map has no processors, disks or cards to change": {
			domaintest.Resets, domaintest.CPUHotplug, domaintest.DiskResize, domaintest.DiskHotplug, domaintest.SCSIHotplug,
			domaintest.InterfaceHotplug, domaintest.MemoryHotplug, domaintest.MediumChange,
		},
		"nobody is in there": {
			domaintest.Agent, domaintest.FullAgent, domaintest.Snapshots, domaintest.Consoles, domaintest.Statistics, domaintest.DeviceStatistics,
		},
		"a map has no peer": {
			domaintest.Migration, domaintest.PostCopy, domaintest.MigrationTuning, domaintest.SlowMigration, domaintest.BrokenLinks,
		},
		"there is no process that could crash, and no connection": {domaintest.Crashes, domaintest.Reconnects},
	} {
		for _, a := range abilities {
			cannot[a] = why
		}
	}
}

// The whole suite: what is declared is skipped, and what can be asked for all the same has to be refused.
func TestHypervisor_Contract(t *testing.T) {
	domaintest.Conformance(t, func(testing.TB) domaintest.Driver {
		return domaintest.Driver{
			Hypervisor:  mapdriver.NewHypervisor("node-1"),
			Definition:  domaintest.Definition,
			Unsupported: cannot,
		}
	})
}
