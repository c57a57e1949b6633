// SPDX-License-Identifier: Apache-2.0

package diagnosis

import (
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/handoff"
	"github.com/virtloom/virtloom/vm"
	"github.com/virtloom/virtloom/vm/instancetype"
	"github.com/virtloom/virtloom/vmi/diagnose"
)

// machineAdvice is the part of a finding that a wait of a VM does not have.
type machineAdvice struct {
	kind        diagnose.FindingKind
	why, remedy string
}

const noneOrLog = "none; if it persists, check that the controller runs, and its log"

// machineAdvices is the advice by the reason of the wait.
var machineAdvices = map[string]machineAdvice{
	"WaitingForCache": {diagnose.WritePending, "nothing is created or deleted based on a cache that lacks the controller's own writes",
		"none: the object is read live after 30s"},
	"WaitingForSpec": {diagnose.WaitingForController, "a VMI has the generation of the spec that it is made from", noneOrLog},
	"VMITerminating": {diagnose.Ending, "there is never more than one VMI of a VM", "wait for it to end; refdaemon explain vmi reports what it waits for"},
	"VMINotRunning":  {WaitingForVMI, "a VM is as its VMI is", "see the findings of the VMI below"},
	string(v1.VirtualMachineStatusCrashLoopBackOff): {BackOff, "VMIs that fail before they run are replaced after a delay, which grows with their number up to five minutes",
		"find out why they fail: events of the VM and of its VMIs, and the log of the launcher Pod; to start at once, set spec.runStrategy to Halted, then back"},
	string(v1.VirtualMachineStatusProvisioning): {diagnose.WaitingForStorage, "a VMI must not start from a disk that is partially populated",
		"wait while it makes progress; else check the conditions of the DataVolume and the log of its importer Pod"},
	"FailedDataVolumeImport": {diagnose.WaitingForStorage, "the disk of the VM is not populated", "correct its source, then delete the DataVolume and its claim: they are created again"},
	string(v1.VirtualMachineManualRecoveryRequired): {RecoveryRequired, "whether the old or the new volumes have the current data is not known",
		"set spec.template back to the volumes with the data, or spec.updateVolumesStrategy to Replacement"},
	string(v1.VirtualMachineRestartRequired): {RestartRequired, "the VMI has what it was started with until it is started anew",
		"restart it when that suits: with run strategy Always, delete the VMI; else stop and start the VM"},
	instancetype.ReasonFailedFindInstancetype: {diagnose.InvalidSpec, "without it, CPUs and memory of the VMI are not known", "create it, or correct spec.instancetype"},
	instancetype.ReasonFailedFindPreference:   {diagnose.InvalidSpec, "without it, the devices of the VMI are not known", "create it, or correct spec.preference"},
}

// adviseMachine returns the finding for a wait; next is the VM after the pass.
func adviseMachine(w vm.Wait, next *v1.VirtualMachine) diagnose.Finding {
	a, known := machineAdvices[w.Reason]
	switch {
	case known:
	case w.Responsible == handoff.ByUser:
		a = machineAdvice{diagnose.InvalidSpec, "a user must correct the VirtualMachine, or what it refers to", "do as the message says"}
	case w.Responsible == handoff.ByStorage:
		a = machineAdvice{diagnose.WaitingForStorage, "storage must become ready", "check the events of the claim"}
	default:
		a = machineAdvice{diagnose.WaitingForController, "a controller must act", noneOrLog}
	}
	f := diagnose.Finding{Kind: a.kind, Reason: w.Reason, What: w.Message, Why: a.why, Remedy: a.remedy, Object: w.Object,
		Responsible: w.Responsible, Until: w.Until, Deadline: w.Deadline}
	if c := machineCondition(next, v1.VirtualMachineConditionType(w.Reason)); c != nil && c.Message != "" {
		f.Details = append(f.Details, c.Message)
	}
	return f
}
