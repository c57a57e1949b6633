// SPDX-License-Identifier: Apache-2.0

package domainctrl

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/action"
	"github.com/virtloom/virtloom/domain/informer"
	"github.com/virtloom/virtloom/domain/plan"
	"github.com/virtloom/virtloom/domain/workspace"
)

// refusing answers every operation with an error.
type refusing struct {
	domain.Hypervisor
	err error
}

func (h refusing) Apply(context.Context, domain.Operation) error {
	return fmt.Errorf("call: %w", h.err)
}

// An operation with an unknown outcome has failed: those that build on it do not follow.
func TestApply_UnknownOutcomeIsAnError(t *testing.T) {
	for _, verb := range []domain.Verb{domain.Start, domain.Shutdown, domain.Destroy, domain.Undefine, domain.Resume} {
		for _, answer := range []error{domain.ErrTimeout, domain.ErrDisconnected, context.DeadlineExceeded, domain.ErrNotFound} {
			r := &Reconciler{Hypervisor: refusing{err: answer}, Clock: clock.RealClock{}, CallTimeout: time.Minute}
			do := action.Action{Verb: action.Apply, Operation: domain.Operation{Verb: verb, Domain: "ns_guest"}}
			err := actor{r}.task(t.Context(), pass{observed: observe(nil, r.Clock.Now())}, do)
			if gone := errors.Is(answer, domain.ErrNotFound) && verb != domain.Start; gone != (err == nil) {
				t.Errorf("%s is answered by %q: error %v", verb, answer, err)
			}
		}
	}
}

// leaving has a domain whose migration ends between the first call about it and the second.
type leaving struct {
	domain.Hypervisor
	domain.Migrator
	asked int
}

func (h *leaving) there() bool {
	h.asked++
	return h.asked == 1
}

func (h *leaving) Get(_ context.Context, name string) (domain.State, error) {
	if !h.there() {
		return domain.State{}, domain.ErrNotFound
	}
	return domain.State{Name: name, Status: domain.StatusRunning}, nil
}

func (h *leaving) MigrationProgress(context.Context, string) (domain.Progress, error) {
	return domain.Progress{Active: h.there()}, nil
}

func TestGather_MigrationEndsMeanwhile(t *testing.T) {
	r := &Reconciler{NodeName: "node-a", Hypervisor: &leaving{}, Workspace: &workspace.Workspace{Root: t.TempDir()}, Clock: clock.RealClock{}, CallTimeout: time.Minute}
	r.migrations, r.agents = newMigrations(r.Clock, time.Minute), newAgents(r.Hypervisor, &informer.Informer{})
	s, err := gatherer{r}.gather(t.Context(), types.NamespacedName{Namespace: "ns", Name: "guest"}, observed{})
	if err != nil {
		t.Fatal(err)
	}
	if s.State != nil && s.State.Alive() && !s.MigrationActive {
		t.Error("the domain of a completed migration is seen as running, with no migration under way")
	}
}

// snapshot gathers and prepares, as a pass does.
func (r *Reconciler) snapshot(ctx context.Context, key types.NamespacedName, vmi *v1.VirtualMachineInstance) (plan.Snapshot, error) {
	w := observe(vmi, time.Time{})
	s, err := gatherer{r}.gather(ctx, key, w)
	if err == nil {
		err = preparer{r}.prepare(ctx, key, w, &s)
	}
	return s, err
}
