// SPDX-License-Identifier: Apache-2.0

package vm_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/vm"
)

// specDumps are the rules of 8.9.
func specDumps() specRows {
	request := func(phase v1.MemoryDumpPhase, more ...func(*v1.VirtualMachineMemoryDumpRequest)) change {
		return edit(func(o *v1.VirtualMachine) {
			o.Status.MemoryDumpRequest = &v1.VirtualMachineMemoryDumpRequest{ClaimName: "dump", Phase: phase}
			for _, m := range more {
				m(o.Status.MemoryDumpRequest)
			}
		})
	}
	file := func(r *v1.VirtualMachineMemoryDumpRequest) { r.FileName = new("file") }
	removed := func(r *v1.VirtualMachineMemoryDumpRequest) { r.Remove = true }
	attached := edit(func(o *v1.VirtualMachine) {
		o.Spec.Template.Spec.Volumes = []v1.Volume{{Name: "dump", VolumeSource: v1.VolumeSource{MemoryDump: &v1.MemoryDumpVolumeSource{}}}}
	})
	status := func(phase v1.VolumePhase) change {
		return edited(func(g *v1.VirtualMachineInstance) {
			g.Status.VolumeStatus = []v1.VolumeStatus{{Name: "dump", Phase: phase, Message: "no space",
				MemoryDumpVolume: &v1.DomainMemoryDumpInfo{TargetFileName: "file", StartTimestamp: &metav1.Time{Time: now}, EndTimestamp: &metav1.Time{Time: now}}}}
		})
	}
	bound := claim("dump", corev1.ClaimBound)
	described := func(s *vm.Snapshot) {
		s.Claims["dump"].Annotations = map[string]string{"kubevirt.io/memory-dump": "file"}
	}
	next := func(phase v1.MemoryDumpPhase, template int) func(*testing.T, vm.Plan) {
		return func(t *testing.T, p vm.Plan) {
			got := v1.MemoryDumpPhase("")
			if r := p.VM.Status.MemoryDumpRequest; r != nil {
				got = r.Phase
			}
			if n := len(p.VM.Spec.Template.Spec.Volumes); got != phase || n != template {
				t.Errorf("phase %q with %d volumes, want %q with %d", got, n, phase, template)
			}
		}
	}
	text := func(want string) func(*testing.T, vm.Plan) {
		return func(t *testing.T, p vm.Plan) {
			if got := action(t, p, vm.PatchClaim).Claim.Annotations["kubevirt.io/memory-dump"]; got != want {
				t.Errorf("annotation %q, want %q", got, want)
			}
		}
	}
	return specRows{
		"85 added to VMI and template":       {given: []change{vmi(v1.Running), request(v1.MemoryDumpAssociating)}, do: "PatchVMI UpdateVM", check: next(v1.MemoryDumpAssociating, 1)},
		"85 not before the VMI runs":         {given: []change{vmi(v1.Scheduled), request(v1.MemoryDumpAssociating)}, check: next(v1.MemoryDumpAssociating, 0)},
		"85 in the template: in progress":    {given: []change{attached, vmi(v1.Running), request(v1.MemoryDumpAssociating)}, check: next(v1.MemoryDumpInProgress, 1)},
		"8.9 it runs":                        {given: []change{attached, vmi(v1.Running), request(v1.MemoryDumpInProgress), status(v1.MemoryDumpVolumeInProgress)}, check: next(v1.MemoryDumpInProgress, 1)},
		"8.9 it is complete":                 {given: []change{attached, vmi(v1.Running), request(v1.MemoryDumpInProgress), status(v1.MemoryDumpVolumeCompleted)}, check: next(v1.MemoryDumpUnmounting, 1)},
		"8.9 it failed":                      {given: []change{attached, vmi(v1.Running), request(v1.MemoryDumpInProgress), status(v1.MemoryDumpVolumeFailed)}, check: next(v1.MemoryDumpFailed, 1)},
		"8.9 the claim says what it holds":   {given: []change{attached, vmi(v1.Running), bound, request(v1.MemoryDumpUnmounting, file), status(v1.MemoryDumpVolumeCompleted)}, do: "PatchClaim PatchVMI", check: text("file")},
		"8.9 it says so already":             {given: []change{attached, vmi(v1.Running), bound, described, request(v1.MemoryDumpUnmounting, file), status(v1.MemoryDumpVolumeCompleted)}, do: "PatchVMI"},
		"8.9 no file name":                   {given: []change{attached, vmi(v1.Running), request(v1.MemoryDumpUnmounting), status(v1.MemoryDumpVolumeCompleted)}, do: "PatchVMI"},
		"8.9 the claim says that it failed":  {given: []change{attached, vmi(v1.Running), bound, request(v1.MemoryDumpFailed)}, do: "PatchClaim PatchVMI", check: text("Memory dump failed")},
		"8.9 the claim is missing":           {given: []change{attached, vmi(v1.Running), request(v1.MemoryDumpFailed)}, failure: "MemoryDumpError: PersistentVolumeClaim ns/dump of the memory dump does not exist; create it, or remove the memory dump"},
		"8.9 unmounted":                      {given: []change{attached, vmi(v1.Running), bound, described, request(v1.MemoryDumpUnmounting, file)}, do: "PatchVMI", check: next(v1.MemoryDumpCompleted, 1)},
		"85 remove":                          {given: []change{attached, vmi(v1.Running), request(v1.MemoryDumpInProgress, removed)}, check: next(v1.MemoryDumpDissociating, 1)},
		"85 remove after it (better: works)": {given: []change{attached, strategy(v1.RunStrategyHalted), request(v1.MemoryDumpCompleted, removed)}, check: next(v1.MemoryDumpDissociating, 1)},
		"85 removed from both":               {given: []change{attached, vmi(v1.Running), request(v1.MemoryDumpDissociating, removed), status("")}, do: "PatchVMI UpdateVM", check: next(v1.MemoryDumpDissociating, 0)},
		"85 removed":                         {given: []change{vmi(v1.Running), request(v1.MemoryDumpDissociating, removed)}, check: next("", 0)},
	}
}
