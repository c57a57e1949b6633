// SPDX-License-Identifier: Apache-2.0

package plan_test

import (
	"errors"
	"testing"

	corev1 "k8s.io/api/core/v1"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/domain/plan"
	"github.com/virtloom/virtloom/domain/status"
)

// TestPrepareError_TextChanges: a status is not written because of a time stamp, but for another
// cause or field.
func TestPrepareError_TextChanges(t *testing.T) {
	const first = "2026-11-24T02:03:04.123456Z qemu-img: spec.volumes[1]: port 49152, pid 17, /proc/self/fd/9, 0x7f12: no space"
	for name, tt := range map[string]struct {
		says  string
		write bool
	}{
		"the same":        {first, false},
		"at another time": {"2027-01-02T12:13:14.5Z qemu-img: spec.volumes[1]: port 49153, pid 4711, /proc/self/fd/12, 0xabc: no space", false},
		"another volume":  {"2026-11-24T02:03:04.123456Z qemu-img: spec.volumes[2]: port 49152, pid 17, /proc/self/fd/9, 0x7f12: no space", true},
		"another cause":   {"no such image", true},
	} {
		t.Run(name, func(t *testing.T) {
			vmi := placed(v1.Scheduled, leased(offerHere))
			vmi.Status.Conditions = []v1.VirtualMachineInstanceCondition{{
				Type: v1.VirtualMachineInstanceSynchronized, Status: corev1.ConditionFalse, Reason: status.ReasonNotReady, Message: first,
			}}
			decided, _ := decide(t, plan.Snapshot{VMI: vmi, PrepareError: errors.New(tt.says)})
			want := first
			if tt.write {
				want = tt.says
			}
			if got := decided.VMI.Status.Conditions[0].Message; got != want {
				t.Errorf("it says %q", got)
			}
		})
	}
}
