// SPDX-License-Identifier: Apache-2.0

package pods_test

import (
	"strings"
	"testing"
	"time"

	"k8s.io/utils/ptr"
	v1 "kubevirt.io/api/core/v1"
)

// TestVMI_GracePeriod: the guest of a VMI that is deleted is asked to shut down, and killed when its grace period is over; so is that
// of a launcher whose Pod is deleted, and the VMI then has ended well.
func TestVMI_GracePeriod(t *testing.T) {
	nightly(t)
	const grace = 15 * time.Second
	deaf := func(vmi *v1.VirtualMachineInstance) {
		saying("deaf=1")(vmi)
		vmi.Spec.TerminationGracePeriodSeconds = ptr.To(int64(grace / time.Second))
	}
	willing := func(vmi *v1.VirtualMachineInstance) { vmi.Spec.TerminationGracePeriodSeconds = ptr.To(int64(600)) }
	guests := bootAll(t, newGuest("willing", willing), newGuest("deaf", deaf), newGuest("evicted", willing))

	guests[0].remove() // far sooner than its grace period allows
	if said := strings.Join(guests[0].con.Lines(), "\n"); !strings.Contains(said, "virtloom-power-button") {
		t.Errorf("it was not asked to shut down: %.2000s", said)
	}
	from := time.Now()
	guests[1].remove()
	if took := time.Since(from); took < grace {
		t.Errorf("the guest was killed after %v, its grace period is %v", took, grace)
	}
	guests[2].deletePod()
	guests[2].awaitFinal(v1.Succeeded)
	guests[2].says("virtloom-power-button")
}
