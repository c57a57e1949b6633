// SPDX-License-Identifier: Apache-2.0

package domain_test

import (
	"errors"
	"testing"

	corev1 "k8s.io/api/core/v1"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/domain"
)

// TestObstacle_TextChangesEachTime: a status is not written because of a time stamp, and is
// for a cause, or a place in the spec, that is another one.
func TestObstacle_TextChangesEachTime(t *testing.T) {
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
				Type: v1.VirtualMachineInstanceSynchronized, Status: corev1.ConditionFalse, Reason: domain.ReasonNotReady, Message: first,
			}}
			plan, _ := decide(t, domain.Sight{VMI: vmi, Obstacle: errors.New(tt.says)})
			want := first
			if tt.write {
				want = tt.says
			}
			if got := plan.VMI.Status.Conditions[0].Message; got != want {
				t.Errorf("it says %q", got)
			}
		})
	}
}
