// SPDX-License-Identifier: Apache-2.0

package migrationctrl_test

import (
	"bytes"
	"context"
	"math"
	"sync/atomic"
	"testing"

	v1 "kubevirt.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/virtloom/virtloom/internal/vmipatch"
	"github.com/virtloom/virtloom/migration/migrationctrl"
)

// holding is the client of a process that dies while its handoff is on its way.
type holding struct {
	dying
	caught chan client.Patch
}

func (h holding) Patch(ctx context.Context, o client.Object, p client.Patch, opts ...client.PatchOption) error {
	data, err := p.Data(o)
	if err != nil {
		return err
	}
	if _, guest := o.(*v1.VirtualMachineInstance); !guest || !bytes.Contains(data, []byte(`"/status/migrationState`)) || h.left.Load() <= 0 {
		return h.dying.Patch(ctx, o, p, opts...)
	}
	h.left.Store(0)
	h.caught <- client.RawPatch(p.Type(), data)
	return errKilled
}

// late lets a handoff arrive after its migration was canceled and has ended.
func late(t *testing.T, c *cluster) {
	vmi := c.guest(t, c.namespace(t), "guest", "sim-0")
	var left atomic.Int64
	left.Store(math.MaxInt64)
	caught := make(chan client.Patch, 1)
	stop := c.startController(t, func(r *migrationctrl.Reconciler) {
		r.Client = holding{dying: dying{Client: r.Client, left: &left, die: func() {}}, caught: caught}
	})
	m := c.migrate(t, vmi, "move", nil)
	var sent client.Patch
	select {
	case sent = <-caught:
	case <-c.released(t, m):
		t.Fatal("the VMI was not handed off")
	}
	stop()
	if err := c.Delete(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	c.startController(t, nil)
	c.waitGone(t, m)
	if err := c.Patch(t.Context(), vmi.DeepCopy(), sent); !vmipatch.Refused(err) {
		t.Errorf("the late handoff is answered with %v, want a refusal", err)
	}
	c.onlyPodOn(t, vmi, "sim-0")
	if ms := vmi.Status.MigrationState; ms == nil || ms.MigrationUID != m.UID || !ms.Failed || ms.TargetNode != "" {
		t.Errorf("the VMI says %+v", ms)
	}
}
