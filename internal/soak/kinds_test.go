// SPDX-License-Identifier: Apache-2.0

package soak

import (
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	policyv1 "k8s.io/api/policy/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/internal/memapi"
)

var (
	podKind   = schema.GroupKind{Kind: "Pod"}
	guestKind = schema.GroupKind{Group: v1.GroupVersion.Group, Kind: "VirtualMachineInstance"}
	moveKind  = schema.GroupKind{Group: v1.GroupVersion.Group, Kind: "VirtualMachineInstanceMigration"}
	eventKind = schema.GroupKind{Group: "events.k8s.io", Kind: "Event"}
)

// kinds are those that the API server has.
func kinds() []memapi.Kind {
	core, kv := corev1.SchemeGroupVersion, v1.GroupVersion
	return []memapi.Kind{
		{GroupVersionKind: core.WithKind("Pod"), Plural: "pods", Status: true, Graceful: true, Typed: corev1.Pod{}},
		{GroupVersionKind: core.WithKind("Node"), Plural: "nodes", Cluster: true, Status: true, Typed: corev1.Node{}},
		{GroupVersionKind: core.WithKind("Namespace"), Plural: "namespaces", Cluster: true},
		{GroupVersionKind: core.WithKind("PersistentVolumeClaim"), Plural: "persistentvolumeclaims", Status: true},
		{GroupVersionKind: core.WithKind("PersistentVolume"), Plural: "persistentvolumes", Cluster: true},
		{GroupVersionKind: core.WithKind("ResourceQuota"), Plural: "resourcequotas", Status: true},
		{GroupVersionKind: core.WithKind("ConfigMap"), Plural: "configmaps"},
		{GroupVersionKind: core.WithKind("Secret"), Plural: "secrets"},
		{GroupVersionKind: core.WithKind("LimitRange"), Plural: "limitranges"},
		{GroupVersionKind: storagev1.SchemeGroupVersion.WithKind("StorageClass"), Plural: "storageclasses", Cluster: true},
		{GroupVersionKind: policyv1.SchemeGroupVersion.WithKind("PodDisruptionBudget"), Plural: "poddisruptionbudgets", Status: true},
		{GroupVersionKind: eventsv1.SchemeGroupVersion.WithKind("Event"), Plural: "events", Typed: eventsv1.Event{}},
		{GroupVersionKind: schema.GroupVersionKind{Group: "apiextensions.k8s.io", Version: "v1", Kind: "CustomResourceDefinition"},
			Plural: "customresourcedefinitions", Cluster: true},
		{GroupVersionKind: kv.WithKind("VirtualMachineInstance"), Plural: "virtualmachineinstances"},
		{GroupVersionKind: kv.WithKind("VirtualMachineInstanceMigration"), Plural: "virtualmachineinstancemigrations", Status: true},
		{GroupVersionKind: kv.WithKind("VirtualMachine"), Plural: "virtualmachines", Status: true},
		{GroupVersionKind: kv.WithKind("KubeVirt"), Plural: "kubevirts", Status: true},
		{GroupVersionKind: schema.GroupVersionKind{Group: "migrations.kubevirt.io", Version: "v1alpha1", Kind: "MigrationPolicy"},
			Plural: "migrationpolicies", Cluster: true},
	}
}
