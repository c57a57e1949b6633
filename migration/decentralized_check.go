// SPDX-License-Identifier: Apache-2.0

package migration

import (
	"fmt"
	"time"

	v1 "kubevirt.io/api/core/v1"
)

// FeatureGate is the gate of the KubeVirt object that enables sending and receiving.
const FeatureGate = "DecentralizedLiveMigration"

// checkDecentralized checks that a migration between clusters or namespaces is enabled and
// complete, and that its VMI can be sent or received. With both spec.sendTo and spec.receive
// a migration is local.
func checkDecentralized(s Snapshot, _ time.Time) Finding {
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
		return never(reasonInvalidSpec, "spec.sendTo.migrationID, spec.sendTo.connectURL: Required value", "create a migration with both")
	case from != nil && from.MigrationID == "":
		return never(reasonInvalidSpec, "spec.receive.migrationID: Required value", "create a migration with it")
	}
	return checkTraveller(s)
}

// checkTraveller checks the VMI of a decentralized migration.
func checkTraveller(s Snapshot) Finding {
	if s.VMI == nil {
		return Finding{}
	}
	if s.Migration.IsDecentralizedTarget() && s.VMI.Annotations[v1.CreateMigrationTarget] != "true" {
		// It runs here, or will be started here; receiving would run it twice.
		return never(reasonNotReceivable, fmt.Sprintf("VirtualMachineInstance %q was not created to receive a migration", s.VMI.Name),
			"create it with the annotation "+v1.CreateMigrationTarget+`: "true"`)
	}
	for _, v := range s.VMI.Status.VolumeStatus {
		if v.HotplugVolume != nil {
			return never(ReasonUnsupported, fmt.Sprintf("volume %q is hotplugged: migrating hotplugged volumes between clusters is not supported", v.Name), "unplug the volume")
		}
	}
	if field := persistentState(s.VMI); field != "" {
		return never(ReasonUnsupported, field+": migrating persistent state between clusters is not supported", "")
	}
	return Finding{}
}
