// SPDX-License-Identifier: Apache-2.0

package measure

// PhaseBuckets, in seconds, are KubeVirt's buckets of times between phases: from half a second
// to an hour.
var PhaseBuckets = []float64{.5, 1, 2, 5, 10, 20, 30, 40, 50, 60, 90, 120, 180, 300, 600, 1200, 1800, 3600}

// Leader reports whether this replica is the leader. Only the leader reports objects, so that a
// sum over all replicas is correct.
type Leader func() bool

// Elected returns a Leader that leads once the channel is closed, such as that of a manager.
func Elected(elected <-chan struct{}) Leader {
	return func() bool {
		select {
		case <-elected:
			return true
		default:
			return false
		}
	}
}

// While returns a reader that emits nothing while another replica leads.
func (l *Leader) While(read func(Emit)) func(Emit) {
	return func(emit Emit) {
		if (*l)() {
			read(emit)
		}
	}
}
