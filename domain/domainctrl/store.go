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

// changed reports whether a plan changes the object.
func changed(was, want *v1.VirtualMachineInstance) bool {
	return want != nil && !equality.Semantic.DeepEqual(was, want)
}

// +kubebuilder:rbac:groups=kubevirt.io,resources=virtualmachineinstances,verbs=patch

// store writes the object as planned, in one patch that is refused if another client wrote in the
// meantime what the plan depends on. The tasks of the pass then depend on the API server's answer.
func (r actor) store(ctx context.Context, v pass) (observed, error) {
	if !changed(v.vmi, v.plan.VMI) {
		return v.observed, nil
	}
	ctx, span := tracer.Start(ctx, "node.Store")
	defer span.End()
	w, sent := v.observed, r.Clock.Now()
	err := vmipatch.Write(v.vmi, v.plan.VMI, func(patch []byte) error {
		answer := &v1.VirtualMachineInstance{}
		answer.Namespace, answer.Name = v.vmi.Namespace, v.vmi.Name
		if err := r.Client.Patch(ctx, answer, client.RawPatch(types.JSONPatchType, patch)); err != nil {
			return err
		}
		w = observe(answer, sent)
		return nil
	}, v.guards()...)
	if err != nil {
		span.SetStatus(codes.Error, err.Error())
		return v.observed, fmt.Errorf("domainctrl: store %s/%s: %w", v.vmi.Namespace, v.vmi.Name, err)
	}
	r.recordEvents(v.vmi, v.plan.VMI)
	r.announce(v.plan)
	return w, nil
}

// guards returns the conditions under which the planned object may be stored. A report of status
// depends on the VMI's lease and phase; unrelated fields may have been written by others.
func (v pass) guards() []vmipatch.Guard {
	if v.binding() {
		return []vmipatch.Guard{vmipatch.Version}
	}
	return []vmipatch.Guard{
		vmipatch.Deletion, vmipatch.Phase, vmipatch.Status("nodeName"), vmipatch.Status("evacuationNodeName"),
		vmipatch.Annotation(handoff.Annotation), vmipatch.Label(v1.NodeNameLabel), vmipatch.Label(v1.MigrationTargetNodeNameLabel),
	}
}

// binding reports whether the plan does more than report status: it changes the lease or the fields
// from which stock KubeVirt derives the owner, or it touches the domain, for which the stored plan
// proves that it was made for the object as it is.
func (v pass) binding() bool {
	was, want := v.vmi, v.plan.VMI
	return v.touchesDomain() ||
		was.Annotations[handoff.Annotation] != want.Annotations[handoff.Annotation] ||
		!maps.Equal(was.Labels, want.Labels) ||
		was.Status.NodeName != want.Status.NodeName ||
		!equality.Semantic.DeepEqual(was.Status.MigrationState, want.Status.MigrationState)
}
