// SPDX-License-Identifier: Apache-2.0

package migration

import (
	"fmt"

	v1 "kubevirt.io/api/core/v1"
)

// FeatureGate is the gate of the KubeVirt object without which nothing is sent or received.
const FeatureGate = "DecentralizedLiveMigration"

// CheckDecentralized demands of a migration between clusters or namespaces that it is
// allowed, complete, and of a guest that it can leave or come. With both spec.sendTo and
// spec.receive a migration is a local one.
func CheckDecentralized(s Snapshot) Finding {
	m := s.Migration
	to, from := m.Spec.SendTo, m.Spec.Receive
	switch {
	case to == nil && from == nil:
		return Finding{}
	case !s.Config.Decentralized:
		return never(ReasonGate, "migrations between clusters (spec.sendTo, spec.receive) are not enabled",
			"add "+FeatureGate+" to spec.configuration.developerConfiguration.featureGates of the KubeVirt object")
	case !m.IsDecentralized():
		return Finding{}
	case to != nil && (to.MigrationID == "" || to.ConnectURL == ""):
		return never(ReasonInvalidSpec, "spec.sendTo needs migrationID and connectURL", "create a migration that has both")
	case from != nil && from.MigrationID == "":
		return never(ReasonInvalidSpec, "spec.receive needs migrationID", "create a migration that has it")
	}
	return checkTraveller(s)
}

// checkTraveller judges the guest of a decentralized migration.
func checkTraveller(s Snapshot) Finding {
	if s.VMI == nil {
		return Finding{}
	}
	if s.Migration.IsDecentralizedTarget() && s.VMI.Annotations[v1.CreateMigrationTarget] != "true" {
		// It is started here, or runs, and so would a second one that comes.
		return never(ReasonNotReceivable, fmt.Sprintf("VirtualMachineInstance %q was not made to receive a guest", s.VMI.Name),
			"create it with the annotation "+v1.CreateMigrationTarget+`: "true"`)
	}
	for _, v := range s.VMI.Status.VolumeStatus {
		if v.HotplugVolume != nil {
			return never(ReasonUnsupported, fmt.Sprintf("volume %q is hotplugged; migrating such guests between clusters is not supported yet", v.Name), "unplug the volume")
		}
	}
	if field := persistentState(s.VMI); field != "" {
		return never(ReasonUnsupported, field+": migrating persistent state between clusters is not supported yet", "")
	}
	return Finding{}
}
