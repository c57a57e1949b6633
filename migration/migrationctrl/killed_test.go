// SPDX-License-Identifier: Apache-2.0

package migrationctrl_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"

	v1 "kubevirt.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/virtloom/virtloom/internal/rig/rigtest"
	"github.com/virtloom/virtloom/migration/migrationctrl"
	"github.com/virtloom/virtloom/template"
)

// errKilled is what a killed process sees of its last write: nothing.
var errKilled = errors.New("killed")

// dying is the client of a process that dies right after its nth write took
// effect, before it learns of it; all later calls fail.
type dying struct {
	client.Client
	left *atomic.Int64
	die  func()
}

func (d dying) after(err error) error {
	if err != nil {
		return err
	}
	if n := d.left.Add(-1); n == 0 {
		d.die()
	}
	if d.left.Load() <= 0 {
		return errKilled
	}
	return nil
}

func (d dying) guard(write func() error) error {
	if d.left.Load() <= 0 {
		return errKilled
	}
	return d.after(write())
}

func (d dying) Create(ctx context.Context, o client.Object, opts ...client.CreateOption) error {
	return d.guard(func() error { return d.Client.Create(ctx, o, opts...) })
}

func (d dying) Patch(ctx context.Context, o client.Object, p client.Patch, opts ...client.PatchOption) error {
	return d.guard(func() error { return d.Client.Patch(ctx, o, p, opts...) })
}

func (d dying) Delete(ctx context.Context, o client.Object, opts ...client.DeleteOption) error {
	return d.guard(func() error { return d.Client.Delete(ctx, o, opts...) })
}

func (d dying) SubResource(name string) client.SubResourceClient {
	return dyingSubResource{d.Client.SubResource(name), d}
}

type dyingSubResource struct {
	client.SubResourceClient
	d dying
}

func (s dyingSubResource) Patch(ctx context.Context, o client.Object, p client.Patch, opts ...client.SubResourcePatchOption) error {
	return s.d.guard(func() error { return s.SubResourceClient.Patch(ctx, o, p, opts...) })
}

// released returns a channel that is closed when nothing is left to do for the
// migration.
func (c *cluster) released(t *testing.T, m *v1.VirtualMachineInstanceMigration) <-chan struct{} {
	t.Helper()
	ended := make(chan struct{})
	seen := m.DeepCopy()
	go func() {
		defer close(ended)
		// An error ends the wait too; what follows looks for itself.
		_ = rigtest.Poll(t.Context(), patience, func(ctx context.Context) (bool, error) {
			err := c.Get(ctx, client.ObjectKeyFromObject(seen), seen)
			return seen.IsFinal() && len(seen.Finalizers) == 0, err
		})
	}()
	return ended
}

// killed kills the controller after each of its writes in turn; its successor has
// to bring the migration to the same end, with the same one target Pod.
func killed(t *testing.T, c *cluster) {
	for n := int64(1); n <= 20; n++ {
		died := false
		t.Run(fmt.Sprintf("after write %d", n), func(t *testing.T) {
			vmi := c.guest(t, c.namespace(t), "guest", "sim-0")
			var left atomic.Int64
			left.Store(n)
			dead := make(chan struct{})
			stop := c.startController(t, func(r *migrationctrl.Reconciler) {
				r.Client = dying{Client: r.Client, left: &left, die: func() { close(dead) }}
			})
			m := c.migrate(t, vmi, "move", nil)
			select {
			case <-dead:
			case <-c.released(t, m):
			}
			stop()
			died = left.Load() <= 0
			c.startController(t, nil)
			c.waitPhase(t, m, v1.MigrationSucceeded)
			c.waitReleased(t, m)
			c.onlyPodOn(t, vmi, m.Status.MigrationState.TargetNode)
			var made int
			for _, e := range c.auditedPods(t, vmi.Namespace) {
				if e == template.TargetName(vmi, m.UID) {
					made++
				}
			}
			if made != 1 {
				t.Errorf("%d target Pods were made, want one", made)
			}
		})
		if !died {
			break
		}
	}
}
