// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"errors"
	"time"

	"github.com/virtloom/virtloom/domain"
)

// settling reports whether the PrepareError is an ordinary state of a start or of a migration's
// target, rather than a failure to report: the kubelet has just started the containers of the
// launcher Pod, and they do not provide yet what the domain needs. It is one until the second
// look at [prepareRetry]. The kubelet's clock is that of this node.
func (d *decision) settling() bool {
	if !errors.Is(d.PrepareError, domain.ErrNotReady) {
		return false
	}
	pod, err := d.proof(d.lease)
	if err != nil {
		return false
	}
	var started time.Time
	for i := range pod.Status.ContainerStatuses {
		if c := pod.Status.ContainerStatuses[i].State.Running; c != nil && c.StartedAt.After(started) {
			started = c.StartedAt.Time
		}
	}
	since := d.now.Sub(started)
	return since >= 0 && since < prepareRetry
}
