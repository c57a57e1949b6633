// SPDX-License-Identifier: Apache-2.0

package migrationctrl

import (
	"context"
	"fmt"
	"slices"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	v1 "kubevirt.io/api/core/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/virtloom/virtloom/handoff"
	"github.com/virtloom/virtloom/internal/vmipatch"
	"github.com/virtloom/virtloom/migration"
	"github.com/virtloom/virtloom/migration/placement"
)

// actor executes the actions of plans.
type actor struct{ *Reconciler }

// act executes the actions in order and adds their results to the snapshot. It stops at
// the first that fails.
func (r actor) act(ctx context.Context, g *gathered, plan migration.Plan) error {
	for _, a := range plan.Actions {
		if err := r.do(ctx, g, a); err != nil {
			g.Failures = map[migration.Verb]error{a.Verb: err}
			return err
		}
		if a.Event != nil {
			r.emit(g, *a.Event)
		}
	}
	if len(plan.Actions) > 0 {
		r.reported.Over(g.key)
	}
	return nil
}

func (r actor) do(ctx context.Context, g *gathered, a migration.Action) (err error) {
	ctx, span := tracer.Start(ctx, "migration."+string(a.Verb))
	span.SetAttributes(attribute.String("why", a.Why))
	defer func() {
		if err != nil {
			span.SetStatus(codes.Error, err.Error())
		}
		span.End()
		r.Metrics.wrote(string(a.Verb), err)
	}()
	carryOut, known := actions[a.Verb]
	if !known {
		return fmt.Errorf("migrationctrl: unknown action %q", a.Verb)
	}
	return carryOut(r, ctx, g, a)
}

// actions holds the function for each kind of action.
var actions = map[migration.Verb]func(actor, context.Context, *gathered, migration.Action) error{
	migration.Adopt:            actor.adopt,
	migration.CreateTarget:     actor.createTarget,
	migration.CreateClaim:      actor.createClaim,
	migration.ChangeClaim:      actor.changeClaim,
	migration.DeleteClaim:      actor.deleteClaim,
	migration.CreateAttachment: actor.createAttachment,
	migration.AnnotatePod:      actor.annotatePod,
	migration.DeletePod:        actor.deletePod,
	migration.ChangeVMI:        actor.changeVMI,
	migration.AbortBackup:      actor.abortBackup,
	migration.Collect:          actor.collect,
}

// adopt adds the selector label and the finalizer, as KubeVirt's webhook does, and records the
// UID of the VMI.
func (r actor) adopt(ctx context.Context, g *gathered, _ migration.Action) error {
	next := g.Migration.DeepCopy()
	controllerutil.AddFinalizer(next, v1.VirtualMachineInstanceMigrationFinalizer)
	// A name that is no valid label value is found through the index alone.
	if name := next.Spec.VMIName; len(validation.IsValidLabelValue(name)) == 0 {
		metav1.SetMetaDataLabel(&next.ObjectMeta, v1.MigrationSelectorLabel, name)
	}
	if g.VMI != nil {
		metav1.SetMetaDataAnnotation(&next.ObjectMeta, migration.VMIUID, string(g.VMI.UID))
	}
	r.moves.Note(g.key, next)
	if err := storer(r).patchMigration(ctx, g, next); err != nil {
		return fmt.Errorf("migrationctrl: adopt %s: %w", g.key, err)
	}
	return nil
}

// The Pod names its VMI as owner and blocks its deletion.
//
// +kubebuilder:rbac:groups="",resources=pods,verbs=create
// +kubebuilder:rbac:groups=kubevirt.io,resources=virtualmachineinstances/finalizers,verbs=update

// createTarget renders and creates the target Pod. Its name is derived from the
// migration, so a repeated creation finds the Pod of the first.
func (r actor) createTarget(ctx context.Context, g *gathered, _ migration.Action) error {
	pod, err := fitter(r).render(ctx, g)
	if err != nil {
		return err
	}
	if err := fitter(r).fits(ctx, g, pod); err != nil {
		return err
	}
	placement.Avoid(pod, r.Admission.Full())
	err = r.gate.For(g.owner).Create(ctx, pod)
	if apierrors.IsAlreadyExists(err) {
		return r.recognise(ctx, g, pod)
	}
	if vmipatch.QuotaExceeded(err) {
		return fmt.Errorf("%w: %w", placement.ErrQuota, err)
	}
	if err != nil {
		r.fault(g, migration.Event{Warning: true, OnVMI: true, Reason: migration.EventCreateFailed, Message: "creating the migration target Pod failed: " + err.Error()})
		return fmt.Errorf("migrationctrl: create Pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	ctrl.LoggerFrom(ctx).V(1).Info("Created target Pod", "pod", client.ObjectKeyFromObject(pod))
	r.emit(g, migration.Event{Reason: migration.EventCreated, Message: "Created migration target pod " + pod.Name})
	g.TargetPod = pod
	return nil
}

// +kubebuilder:rbac:groups="",resources=pods,verbs=get

// recognise reads an existing Pod and checks that it is this migration's.
func (r actor) recognise(ctx context.Context, g *gathered, pod *corev1.Pod) error {
	live := &corev1.Pod{}
	if err := r.APIReader.Get(ctx, client.ObjectKeyFromObject(pod), live); err != nil {
		return fmt.Errorf("migrationctrl: read Pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	if live.Labels[v1.MigrationJobLabel] != string(g.Migration.UID) || !metav1.IsControlledBy(live, g.VMI) {
		return fmt.Errorf("%w: Pod %s/%s (delete it, then recreate the migration)", migration.ErrForeignPod, live.Namespace, live.Name)
	}
	g.TargetPod = live
	return nil
}

// +kubebuilder:rbac:groups="",resources=pods,verbs=delete

// deletePod deletes one incarnation of a Pod. Another one with its name is left alone and
// counts as success.
func (r actor) deletePod(ctx context.Context, g *gathered, a migration.Action) error {
	var opts []client.DeleteOption
	if a.Pod.GraceSeconds != nil {
		opts = append(opts, client.GracePeriodSeconds(*a.Pod.GraceSeconds))
	}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: g.key.Namespace, Name: a.Pod.Name, UID: a.Pod.UID}}
	err := r.gate.For(g.owner).Delete(ctx, pod, opts...)
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return fmt.Errorf("migrationctrl: delete Pod %s/%s: %w", g.key.Namespace, a.Pod.Name, err)
	}
	ctrl.LoggerFrom(ctx).V(1).Info("Deleted Pod", "pod", client.ObjectKeyFromObject(pod), "why", a.Why)
	g.SourcePod, g.TargetPod = without(g.SourcePod, a.Pod), without(g.TargetPod, a.Pod)
	return nil
}

func without(p *corev1.Pod, gone *migration.PodRef) *corev1.Pod {
	if p != nil && p.UID == gone.UID {
		return nil
	}
	return p
}

// +kubebuilder:rbac:groups=kubevirt.io,resources=virtualmachineinstances,verbs=get;patch

// changeVMI writes the VMI, if all that the decision depended on is unchanged.
func (r actor) changeVMI(ctx context.Context, g *gathered, a migration.Action) error {
	was, next := g.VMI, g.VMI.DeepCopy()
	if err := a.Change.Apply(next); err != nil {
		return err
	}
	r.moves.Note(g.key, next) // for the agents of the nodes
	guards := decisive
	if a.Change.TargetNode != "" {
		guards = slices.Concat(decisive, plugged)
	}
	err := vmipatch.Write(was, next, func(patch []byte) error {
		answer := &v1.VirtualMachineInstance{}
		answer.Namespace, answer.Name, answer.ResourceVersion = was.Namespace, was.Name, was.ResourceVersion
		if err := r.gate.For(g.owner).Patch(ctx, answer, client.RawPatch(types.JSONPatchType, patch)); err != nil {
			return err
		}
		g.VMI = answer
		return nil
	}, guards...)
	if err != nil {
		return fmt.Errorf("migrationctrl: change VirtualMachineInstance %s/%s: %w", was.Namespace, was.Name, err)
	}
	ctrl.LoggerFrom(ctx).V(1).Info("Changed VMI", "virtualMachineInstance", client.ObjectKeyFromObject(was), "why", a.Why)
	return nil
}

// decisive are the fields that define the owner of the VMI and the state of its migration: the
// lease, and what is read where there is none. No combination recurs after a change: each
// migration has an epoch and a UID of its own. So a late write is rejected.
var decisive = []vmipatch.Guard{
	vmipatch.Deletion, vmipatch.Phase, vmipatch.Status("nodeName"), vmipatch.Status("migrationState"),
	vmipatch.Annotation(handoff.Annotation), vmipatch.Label(v1.NodeNameLabel), vmipatch.Label(v1.MigrationTargetNodeNameLabel),
}

// plugged are the fields by which a handoff knows the volumes that the target has to attach. A VMI that was read before one was
// hotplugged is not handed off, as its domain could not run at the target.
var plugged = []vmipatch.Guard{vmipatch.Volumes, vmipatch.VolumePhases}

// Deletes migrations that ended long ago.
//
// +kubebuilder:rbac:groups=kubevirt.io,resources=virtualmachineinstancemigrations,verbs=delete

// collect deletes a finished migration.
func (r actor) collect(ctx context.Context, g *gathered, a migration.Action) error {
	for _, o := range append(slices.Clip(g.Others), g.Migration) {
		if o.Name != a.Name {
			continue
		}
		err := r.Client.Delete(ctx, o.DeepCopy(), client.Preconditions{UID: &o.UID})
		if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
			return fmt.Errorf("migrationctrl: delete finished migration %s/%s: %w", o.Namespace, o.Name, err)
		}
	}
	g.Others = slices.DeleteFunc(slices.Clone(g.Others), func(o *v1.VirtualMachineInstanceMigration) bool { return o.Name == a.Name })
	return nil
}
