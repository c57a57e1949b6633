// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	admissionv1 "k8s.io/api/admission/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"
	v1 "kubevirt.io/api/core/v1"
	"kubevirt.io/api/instancetype/v1beta1"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	webhookadmission "sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/virtloom/virtloom/vm/admit"
	"github.com/virtloom/virtloom/vm/instancetype"
)

// mostReads bounds how often objects are read that one VirtualMachine turns out to need.
const mostReads = 16

// machineAdmission serves the webhooks about VirtualMachines. Every replica does, so it reads from the API server: a user may
// create an instance type and at once a VirtualMachine with it.
type machineAdmission struct {
	*admission
	reader client.Reader
}

// Default sets defaults on a new or changed VirtualMachine.
func (a *machineAdmission) Default(ctx context.Context, vm *v1.VirtualMachine) error {
	in, err := a.input(ctx, vm)
	if err != nil {
		return err
	}
	for range mostReads {
		next, missing, err := admit.Default(in)
		switch {
		case err != nil:
			return apierrors.NewBadRequest(err.Error())
		case len(missing) == 0:
			*vm = *next // they may be one object, which DeepCopyInto would empty
			return nil
		}
		if err := a.read(ctx, in.Objects, missing); err != nil {
			return err
		}
	}
	return errTooMany
}

var errTooMany = errors.New("the VirtualMachine leads to more objects than are read for one request: use fewer DataSources that refer to each other")

// ValidateCreate rejects an invalid new VirtualMachine.
func (a *machineAdmission) ValidateCreate(ctx context.Context, vm *v1.VirtualMachine) (webhookadmission.Warnings, error) {
	return a.validate(ctx, vm)
}

// ValidateUpdate rejects an invalid change.
func (a *machineAdmission) ValidateUpdate(ctx context.Context, _, vm *v1.VirtualMachine) (webhookadmission.Warnings, error) {
	return a.validate(ctx, vm)
}

// ValidateDelete allows every deletion.
func (*machineAdmission) ValidateDelete(context.Context, *v1.VirtualMachine) (webhookadmission.Warnings, error) {
	return nil, nil
}

func (a *machineAdmission) validate(ctx context.Context, vm *v1.VirtualMachine) (webhookadmission.Warnings, error) {
	in, err := a.input(ctx, vm)
	if err != nil {
		return nil, err
	}
	if len(vm.Status.VolumeRequests) > 0 {
		if in.VMI, err = a.vmi(ctx, vm); err != nil {
			return nil, err
		}
	}
	for range mostReads {
		verdict := admit.Validate(in)
		if len(verdict.Need) > 0 {
			if err := a.read(ctx, in.Objects, verdict.Need); err != nil {
				return nil, err
			}
			continue
		}
		if len(verdict.Errors) > 0 {
			return verdict.Warnings, apierrors.NewInvalid(v1.VirtualMachineGroupVersionKind.GroupKind(), vm.Name, verdict.Errors)
		}
		return verdict.Warnings, nil
	}
	return nil, errTooMany
}

// input returns the input of the admission request in ctx.
func (a *machineAdmission) input(ctx context.Context, vm *v1.VirtualMachine) (admit.Input, error) {
	in := admit.Input{VM: vm, Objects: instancetype.Objects{}}
	req, guests, err := a.judged(ctx)
	if err != nil {
		return in, err
	}
	in.Config = admit.Config{VMIs: guests, SerialNumber: uuid.NewUUID()}
	if req.Operation != admissionv1.Update {
		return in, nil
	}
	in.Old = &v1.VirtualMachine{}
	if err := json.Unmarshal(req.OldObject.Raw, in.Old); err != nil {
		return in, fmt.Errorf("decode the old VirtualMachine: %w", err)
	}
	return in, nil
}

// +kubebuilder:rbac:groups=kubevirt.io,resources=virtualmachineinstances,verbs=get

// vmi returns the VMI of the VM's name; nil if there is none.
func (a *machineAdmission) vmi(ctx context.Context, vm *v1.VirtualMachine) (*v1.VirtualMachineInstance, error) {
	vmi := &v1.VirtualMachineInstance{}
	switch err := a.reader.Get(ctx, client.ObjectKeyFromObject(vm), vmi); {
	case apierrors.IsNotFound(err):
		return nil, nil //nolint:nilnil // absence is an answer
	case err != nil:
		return nil, fmt.Errorf("read the VMI: %w", err)
	}
	return vmi, nil
}

// Instance types and preferences, and what they are inferred from.
//
// +kubebuilder:rbac:groups=instancetype.kubevirt.io,resources=virtualmachineinstancetypes;virtualmachineclusterinstancetypes;virtualmachinepreferences;virtualmachineclusterpreferences,verbs=get
// +kubebuilder:rbac:groups=apps,resources=controllerrevisions,verbs=get
// +kubebuilder:rbac:groups="",resources=persistentvolumeclaims,verbs=get
// +kubebuilder:rbac:groups=cdi.kubevirt.io,resources=datavolumes;datasources,verbs=get
// +kubebuilder:rbac:groups=snapshot.storage.k8s.io,resources=volumesnapshots,verbs=get

// read reads objects that are missing. One of a kind that the cluster does not serve does not exist.
func (a *machineAdmission) read(ctx context.Context, objects instancetype.Objects, missing []instancetype.Ref) error {
	for _, ref := range missing {
		into := empty(ref.Kind)
		if into == nil {
			return fmt.Errorf("%s is of no kind that can be read", ref)
		}
		switch err := a.reader.Get(ctx, types.NamespacedName{Namespace: ref.Namespace, Name: ref.Name}, into); {
		case apierrors.IsNotFound(err), meta.IsNoMatchError(err):
			objects[ref] = nil
		case err != nil:
			return fmt.Errorf("read %s: %w", ref, err)
		default:
			objects[ref] = into
		}
	}
	return nil
}

// empty returns an object of the kind; nil for another one than refs can have.
func empty(kind string) client.Object {
	switch kind {
	case instancetype.KindRevision:
		return &appsv1.ControllerRevision{}
	case instancetype.KindInstancetype:
		return &v1beta1.VirtualMachineInstancetype{}
	case instancetype.KindClusterInstancetype:
		return &v1beta1.VirtualMachineClusterInstancetype{}
	case instancetype.KindPreference:
		return &v1beta1.VirtualMachinePreference{}
	case instancetype.KindClusterPreference:
		return &v1beta1.VirtualMachineClusterPreference{}
	case instancetype.KindClaim:
		return &corev1.PersistentVolumeClaim{}
	case instancetype.KindDataVolume:
		return &cdiv1.DataVolume{}
	case instancetype.KindDataSource:
		return &cdiv1.DataSource{}
	case instancetype.KindSnapshot:
		o := &metav1.PartialObjectMetadata{}
		o.SetGroupVersionKind(schema.GroupVersionKind{Group: "snapshot.storage.k8s.io", Version: "v1", Kind: kind})
		return o
	default:
		return nil
	}
}
