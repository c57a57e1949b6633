// SPDX-License-Identifier: Apache-2.0

package migrationctrl

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"

	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	v1 "kubevirt.io/api/core/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/virtloom/virtloom/internal/vmipatch"
	"github.com/virtloom/virtloom/migration/evacuation"
)

// Marks of a descheduler's evictions.
const (
	requestedBy = "requested-by"
	descheduler = "sigs.k8s.io/descheduler"
)

// Evictions answers the API server whether a Pod may be evicted, as evacuation.Evict decides, and
// requests VMIs to leave their nodes. It is an admission handler for creations of pods/eviction.
type Evictions struct {
	// Migrations is the migration controller of the same manager, set up before; its client, clock
	// and configuration are shared. Required.
	Migrations *Reconciler
}

// Handle answers one request. Answers without effects come from the cache, so that drains may retry
// often; an eviction is allowed, and a VMI requested to leave, only after live reads.
func (e *Evictions) Handle(ctx context.Context, req admission.Request) admission.Response {
	key := types.NamespacedName{Namespace: req.Namespace, Name: req.Name}
	var last evacuation.EvictionAnswer
	var in evacuation.Eviction
	for _, from := range []client.Reader{e.Migrations.Client, e.Migrations.APIReader} {
		var err error
		if in, err = e.gather(ctx, from, key, isDescheduler(req)); err != nil {
			return refuseEviction("reading the Pod's VMI failed: " + err.Error())
		}
		if in.Pod == nil {
			last = evacuation.EvictionAnswer{Allowed: true, Message: "the Pod does not exist"}
			continue
		}
		last = evacuation.Evict(in, e.Migrations.Clock.Now())
		if !last.Allowed && last.Mark == nil {
			return refuseEviction(last.Message)
		}
	}
	if last.Mark != nil {
		if err := e.mark(ctx, in.Candidate.VMI, *last.Mark, req.DryRun != nil && *req.DryRun); err != nil {
			return refuseEviction("requesting the evacuation of the VMI failed: " + err.Error())
		}
		ctrl.LoggerFrom(ctx).V(1).Info("Requested evacuation of VMI", "virtualMachineInstance", client.ObjectKeyFromObject(in.Candidate.VMI), "node", last.Mark.Node, "by", req.UserInfo.Username)
	}
	if !last.Allowed {
		return refuseEviction(last.Message)
	}
	return admission.Allowed(last.Message)
}

// refuseEviction returns the denial upon which drains retry.
func refuseEviction(message string) admission.Response {
	return admission.Response{AdmissionResponse: admissionv1.AdmissionResponse{Result: &metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusTooManyRequests, Reason: metav1.StatusReasonTooManyRequests, Message: message,
	}}}
}

// isDescheduler reports whether a descheduler sent the request.
func isDescheduler(req admission.Request) bool {
	var o metav1.PartialObjectMetadata
	return json.Unmarshal(req.Object.Raw, &o) == nil && o.Annotations[requestedBy] == descheduler
}

// +kubebuilder:rbac:groups="",resources=pods,verbs=get
// +kubebuilder:rbac:groups=kubevirt.io,resources=virtualmachineinstances,verbs=get

// gather reads the Pod and its VMI, if they exist.
func (e *Evictions) gather(ctx context.Context, from client.Reader, key types.NamespacedName, byDescheduler bool) (evacuation.Eviction, error) {
	in := evacuation.Eviction{Descheduler: byDescheduler}
	pod := &corev1.Pod{}
	if err := from.Get(ctx, key, pod); err != nil {
		return in, client.IgnoreNotFound(err)
	}
	in.Pod = pod
	kv, err := e.Migrations.gatherer.KubeVirt(ctx)
	if err != nil {
		return in, err
	}
	in.Config = e.Migrations.config(kv)
	in.Strategy = strategy(kv)
	if in.Candidate.VMI, err = vmiOf(ctx, from, pod); err != nil || in.Candidate.VMI == nil {
		return in, err
	}
	// Of its migrations only those count that ended a while ago.
	var list v1.VirtualMachineInstanceMigrationList
	err = e.Migrations.Client.List(ctx, &list, client.InNamespace(key.Namespace), client.MatchingFields{migrationByVMI: in.Candidate.VMI.Name})
	in.Candidate.Migrations = pointers(list.Items)
	return in, err
}

// vmiOf reads the VMI that controls the Pod, directly or through another Pod; nil if there is
// none.
func vmiOf(ctx context.Context, from client.Reader, pod *corev1.Pod) (*v1.VirtualMachineInstance, error) {
	c := metav1.GetControllerOf(pod)
	if c != nil && c.Kind == podKind {
		holder := &corev1.Pod{}
		err := from.Get(ctx, types.NamespacedName{Namespace: pod.Namespace, Name: c.Name}, holder)
		if err != nil || holder.UID != c.UID {
			return nil, client.IgnoreNotFound(err)
		}
		c = metav1.GetControllerOf(holder)
	}
	if c == nil || c.Kind != vmiKind {
		return nil, nil //nolint:nilnil // absence is an answer
	}
	vmi := &v1.VirtualMachineInstance{}
	err := from.Get(ctx, types.NamespacedName{Namespace: pod.Namespace, Name: c.Name}, vmi)
	if err != nil || vmi.UID != c.UID {
		return nil, client.IgnoreNotFound(err)
	}
	return vmi, nil
}

// errChanged is the error of a lost race.
var errChanged = errors.New("it was changed concurrently; retry")

// +kubebuilder:rbac:groups=kubevirt.io,resources=virtualmachineinstances,verbs=patch

// mark requests the VMI to leave its node, if it is still there and was not requested yet.
func (e *Evictions) mark(ctx context.Context, was *v1.VirtualMachineInstance, m evacuation.EvictionMark, dryRun bool) error {
	var opts []client.PatchOption
	if dryRun {
		opts = append(opts, client.DryRunAll)
	}
	next := was.DeepCopy()
	m.Apply(next)
	err := vmipatch.Write(was, next, func(patch []byte) error {
		o := &v1.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{Namespace: was.Namespace, Name: was.Name}}
		return e.Migrations.Client.Patch(ctx, o, client.RawPatch(types.JSONPatchType, patch), opts...)
	}, vmipatch.Deletion, vmipatch.Phase, vmipatch.Status("nodeName"), vmipatch.Status("evacuationNodeName"))
	if vmipatch.LostRace(err) || apierrors.IsNotFound(err) {
		return errChanged
	}
	if err != nil {
		return fmt.Errorf("patch VirtualMachineInstance %s/%s: %w", was.Namespace, was.Name, err)
	}
	return nil
}
