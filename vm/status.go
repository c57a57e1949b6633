// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"hash/fnv"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/internal/vmistatus"
)

// longestDelay bounds the back-off.
const longestDelay = 300

// statusFields is the status of the VM.
type statusFields struct{ *decision }

// update computes the status.
func (d statusFields) update() {
	if d.strategy == "" {
		d.strategy, _ = d.VM.RunStrategy()
	}
	st := &d.plan.VM.Status
	if !d.creates() {
		st.Created = d.vmi != nil
		st.Ready = d.vmi != nil && vmistatus.IsTrue(d.vmi, v1.VirtualMachineInstanceReady)
	}
	generation(d).report()
	if d.vmi != nil || st.RunStrategy != "" && d.strategy != v1.RunStrategyRerunOnFailure {
		st.RunStrategy = d.strategy
	}
	st.VolumeRequests = openVolumeRequests(st.VolumeRequests, d.VM.Spec.Template)
	st.MemoryDumpRequest = advanceDump(st.MemoryDumpRequest, d.VM.Spec.Template, d.vmi)
	if len(d.Pending) == 0 && d.requests.fulfilled(d.vmi, d.strategy) {
		st.StateChangeRequests = slices.Delete(slices.Clone(st.StateChangeRequests), 0, 1)
	}
	st.StartFailure = countStartFailure(st.StartFailure, d.vmi, d.strategy, d.now)
	conditions(d).update()
	st.PrintableStatus = d.appearance().printable()
}

// creates reports whether the cache does not have the VMI yet that was created: what was stored with the knowledge of it stays.
func (d *decision) creates() bool { return d.VMI == nil && d.expects(CreateVMI) }

// appearance returns what the printable status depends on.
func (d statusFields) appearance() appearance {
	return appearance{
		vm: d.VM, vmi: d.vmi, strategy: d.strategy, requests: d.requests, startFailure: d.plan.VM.Status.StartFailure,
		creating: d.Failure == nil && d.does(CreateVMI) || d.expects(CreateVMI), deleting: d.Failure == nil && d.does(DeleteVMI) || d.expects(DeleteVMI),
		dataVolumes: d.DataVolumes, claims: d.Claims, now: d.now,
	}
}

// countStartFailure counts VMIs in a row that ended before they ran, each once.
func countStartFailure(f *v1.VirtualMachineStartFailure, vmi *v1.VirtualMachineInstance, s v1.VirtualMachineRunStrategy, now time.Time) *v1.VirtualMachineStartFailure {
	ran := vmi != nil && slices.ContainsFunc(vmi.Status.PhaseTransitionTimestamps, func(t v1.VirtualMachineInstancePhaseTransitionTimestamp) bool {
		return t.Phase == v1.Running
	})
	switch {
	case ran || inPhase(vmi, v1.Running) || !startsUnasked(s):
		return nil
	case vmi == nil || !vmi.IsFinal() || lastFailedVMI(f) == vmi.UID && f != nil:
		return f
	}
	count := 1
	if f != nil {
		count = f.ConsecutiveFailCount + 1
	}
	at := metav1.NewTime(now.Add(startDelay(count, string(vmi.UID))))
	return &v1.VirtualMachineStartFailure{ConsecutiveFailCount: count, LastFailedVMIUID: vmi.UID, RetryAfterTimestamp: &at}
}

// startDelay returns the back-off after a number of failures. What KubeVirt adds at random follows from the seed.
func startDelay(failures int, seed string) time.Duration {
	n := min(max(failures, 1), 10)
	base := 10 * n * n
	h := fnv.New32a()
	h.Write([]byte(seed))
	seconds := base + int(h.Sum32()%uint32(base/2+1))
	return time.Duration(min(seconds, longestDelay)) * time.Second
}

// startsUnasked reports whether a run strategy starts a VMI without a request.
func startsUnasked(s v1.VirtualMachineRunStrategy) bool {
	return s == v1.RunStrategyAlways || s == v1.RunStrategyRerunOnFailure || s == v1.RunStrategyOnce
}
