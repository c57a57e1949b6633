// SPDX-License-Identifier: Apache-2.0

package dump

import (
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	v1 "kubevirt.io/api/core/v1"
	instancetypeapi "kubevirt.io/api/instancetype"
	instancetypev1 "kubevirt.io/api/instancetype/v1beta1"
	migrationsv1 "kubevirt.io/api/migrations/v1alpha1"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/virtloom/virtloom/vm/instancetype"
)

// source is a kind that is listed.
type source struct {
	schema.GroupVersionKind
	// global is true if objects have no namespace.
	global bool
	// keep reports whether an object is kept; nil keeps all.
	keep func(client.Object) bool
}

var revisionKind = appsv1.SchemeGroupVersion.WithKind(instancetype.KindRevision)

// ofMachine reports whether a ControllerRevision is one of a VirtualMachine, or holds an instance type or a preference:
// those of DaemonSets and StatefulSets hold Pod templates, which are not even kept.
func ofMachine(o client.Object) bool {
	c := metav1.GetControllerOf(o)
	return c != nil && c.Kind == v1.VirtualMachineGroupVersionKind.Kind || o.GetLabels()[instancetypeapi.ControllerRevisionObjectKindLabel] != ""
}

// sources are all listed kinds, in this order: referring kinds first, so that objects created
// meanwhile are not missing for objects that refer to them.
var sources = []source{
	{GroupVersionKind: v1.VirtualMachineInstanceMigrationGroupVersionKind},
	{GroupVersionKind: v1.VirtualMachineGroupVersionKind},
	{GroupVersionKind: v1.VirtualMachineInstanceGroupVersionKind},
	{GroupVersionKind: revisionKind, keep: ofMachine},
	{GroupVersionKind: instancetypev1.SchemeGroupVersion.WithKind(instancetype.KindInstancetype)},
	{GroupVersionKind: instancetypev1.SchemeGroupVersion.WithKind(instancetype.KindClusterInstancetype), global: true},
	{GroupVersionKind: instancetypev1.SchemeGroupVersion.WithKind(instancetype.KindPreference)},
	{GroupVersionKind: instancetypev1.SchemeGroupVersion.WithKind(instancetype.KindClusterPreference), global: true},
	{GroupVersionKind: corev1.SchemeGroupVersion.WithKind("Pod")},
	{GroupVersionKind: corev1.SchemeGroupVersion.WithKind("PersistentVolumeClaim")},
	{GroupVersionKind: cdiv1.SchemeGroupVersion.WithKind("DataVolume")},
	{GroupVersionKind: corev1.SchemeGroupVersion.WithKind("ResourceQuota")},
	{GroupVersionKind: corev1.SchemeGroupVersion.WithKind("Namespace"), global: true},
	{GroupVersionKind: corev1.SchemeGroupVersion.WithKind("Node"), global: true},
	{GroupVersionKind: v1.KubeVirtGroupVersionKind},
	{GroupVersionKind: migrationsv1.SchemeGroupVersion.WithKind("MigrationPolicy"), global: true},
	{GroupVersionKind: storagev1.SchemeGroupVersion.WithKind("StorageClass"), global: true},
	{GroupVersionKind: cdiv1.SchemeGroupVersion.WithKind("StorageProfile"), global: true},
	{GroupVersionKind: cdiv1.SchemeGroupVersion.WithKind("CDI"), global: true},
	{GroupVersionKind: cdiv1.SchemeGroupVersion.WithKind("CDIConfig"), global: true},
}

// Kind summarizes the objects of one kind.
type Kind struct {
	// APIVersion and Kind identify it.
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	// Metadata is true if only metadata is included, Named if only objects that others name are
	// included, Global if objects have no namespace.
	Metadata bool `json:"metadata,omitempty"`
	Named    bool `json:"named,omitempty"`
	Global   bool `json:"global,omitempty"`
	// Objects is their number.
	Objects int `json:"objects"`
	// Missing is the reason why they could not be read; empty if they were.
	Missing string `json:"missing,omitempty"`
}

func (k *Kind) gvk() schema.GroupVersionKind {
	return schema.FromAPIVersionAndKind(k.APIVersion, k.Kind)
}

func (k *Kind) scope() meta.RESTScope {
	if k.Global {
		return meta.RESTScopeRoot
	}
	return meta.RESTScopeNamespace
}

func kindOf(gvk schema.GroupVersionKind) Kind {
	apiVersion, kind := gvk.ToAPIVersionAndKind()
	return Kind{APIVersion: apiVersion, Kind: kind}
}

// asMetadata returns the metadata of an object.
func asMetadata(o metav1.Object, gvk schema.GroupVersionKind) *metav1.PartialObjectMetadata {
	out := meta.AsPartialObjectMetadata(o)
	out.SetGroupVersionKind(gvk)
	return out
}
