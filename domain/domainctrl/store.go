// SPDX-License-Identifier: Apache-2.0

package domainctrl

import (
	"context"
	"fmt"
	"maps"

	"go.opentelemetry.io/otel/codes"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"
	v1 "kubevirt.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/virtloom/virtloom/handoff"
	"github.com/virtloom/virtloom/internal/vmipatch"
)

// changed tells whether a plan wants the object to say something else.
func changed(was, want *v1.VirtualMachineInstance) bool {
	return want != nil && !equality.Semantic.DeepEqual(was, want)
}

// +kubebuilder:rbac:groups=kubevirt.io,resources=virtualmachineinstances,verbs=patch

// store writes the object as the plan wants it, in one patch that is refused if
// somebody else wrote in the meantime what the plan depends on. What the API server
// answers is then what the tasks of the pass go by.
func (r *Reconciler) store(ctx context.Context, v view) (word, error) {
	if !changed(v.vmi, v.plan.VMI) {
		return v.word, nil
	}
	ctx, span := tracer.Start(ctx, "node.Store")
	defer span.End()
	w, sent := v.word, r.Clock.Now()
	err := vmipatch.Write(v.vmi, v.plan.VMI, func(patch []byte) error {
		answer := &v1.VirtualMachineInstance{}
		answer.Namespace, answer.Name = v.vmi.Namespace, v.vmi.Name
		if err := r.Client.Patch(ctx, answer, client.RawPatch(types.JSONPatchType, patch)); err != nil {
			return err
		}
		w = word{vmi: answer, asked: sent}
		return nil
	}, v.guards()...)
	if err != nil {
		span.SetStatus(codes.Error, err.Error())
		return v.word, fmt.Errorf("domainctrl: store %s/%s: %w", v.vmi.Namespace, v.vmi.Name, err)
	}
	r.tell(v.vmi, v.plan.VMI)
	r.announce(v.plan)
	return w, nil
}

// guards are what must be as the plan found it when that is stored. A report of how the
// guest is depends on whose the guest is, and in which phase; what is unrelated to that
// may have been written by others.
func (v view) guards() []vmipatch.Guard {
	if v.binding() {
		return []vmipatch.Guard{vmipatch.Version}
	}
	return []vmipatch.Guard{
		vmipatch.Deletion, vmipatch.Phase, vmipatch.Status("nodeName"), vmipatch.Status("evacuationNodeName"),
		vmipatch.Annotation(handoff.Annotation), vmipatch.Label(v1.NodeNameLabel), vmipatch.Label(v1.MigrationTargetNodeNameLabel),
	}
}

// binding tells whether the plan does more than to report: it moves the lease or what
// stock KubeVirt reads the same from, or it does something to the guest, for which the
// stored plan is the proof that it was made for the object as it is.
func (v view) binding() bool {
	was, want := v.vmi, v.plan.VMI
	return v.touchesGuest() ||
		was.Annotations[handoff.Annotation] != want.Annotations[handoff.Annotation] ||
		!maps.Equal(was.Labels, want.Labels) ||
		was.Status.NodeName != want.Status.NodeName ||
		!equality.Semantic.DeepEqual(was.Status.MigrationState, want.Status.MigrationState)
}
