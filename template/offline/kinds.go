// SPDX-License-Identifier: Apache-2.0

package offline

import (
	"maps"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	v1 "kubevirt.io/api/core/v1"
	exportv1 "kubevirt.io/api/export/v1"
	instancetypev1 "kubevirt.io/api/instancetype/v1beta1"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"

	"github.com/virtloom/virtloom/vm/instancetype"
)

// value is the interface of all objects.
type value interface {
	metav1.Object
	runtime.Object
}

// kind is a supported kind.
type kind struct {
	versions  []string // group and version; the first is preferred
	clusterly bool     // cluster-scoped
	empty     func() value
}

// kinds are all supported kinds. An older version shares the type of the preferred one, because their fields are equal.
var kinds = map[string]kind{
	"VirtualMachineInstance": {versions: kubevirt, empty: func() value { return &v1.VirtualMachineInstance{} }},
	"VirtualMachineInstanceMigration": {
		versions: kubevirt, empty: func() value { return &v1.VirtualMachineInstanceMigration{} },
	},
	"KubeVirt":              {versions: kubevirt, empty: func() value { return &v1.KubeVirt{} }},
	"Pod":                   {versions: core, empty: func() value { return &corev1.Pod{} }},
	"Node":                  {versions: core, clusterly: true, empty: func() value { return &corev1.Node{} }},
	"PersistentVolumeClaim": {versions: core, empty: func() value { return &corev1.PersistentVolumeClaim{} }},
	"ConfigMap":             {versions: core, empty: func() value { return &corev1.ConfigMap{} }},
	"Namespace":             {versions: core, clusterly: true, empty: func() value { return &corev1.Namespace{} }},
	"ResourceQuota":         {versions: core, empty: func() value { return &corev1.ResourceQuota{} }},
	"NetworkAttachmentDefinition": {
		versions: []string{"k8s.cni.cncf.io/v1"}, empty: func() value { return &networkAttachmentDefinition{} },
	},
	"VirtualMachineExport": {
		versions: []string{exportv1.SchemeGroupVersion.String(), "export.kubevirt.io/v1beta1"},
		empty:    func() value { return &exportv1.VirtualMachineExport{} },
	},
	vmKind: {versions: kubevirt, empty: func() value { return &v1.VirtualMachine{} }},
	instancetype.KindInstancetype: {
		versions: instancetypes, empty: func() value { return &instancetypev1.VirtualMachineInstancetype{} },
	},
	instancetype.KindClusterInstancetype: {
		versions: instancetypes, clusterly: true, empty: func() value { return &instancetypev1.VirtualMachineClusterInstancetype{} },
	},
	instancetype.KindPreference: {
		versions: instancetypes, empty: func() value { return &instancetypev1.VirtualMachinePreference{} },
	},
	instancetype.KindClusterPreference: {
		versions: instancetypes, clusterly: true, empty: func() value { return &instancetypev1.VirtualMachineClusterPreference{} },
	},
	instancetype.KindRevision: {
		versions: []string{appsv1.SchemeGroupVersion.String()}, empty: func() value { return &appsv1.ControllerRevision{} },
	},
	instancetype.KindDataVolume: {versions: cdi, empty: func() value { return &cdiv1.DataVolume{} }},
	instancetype.KindDataSource: {versions: cdi, empty: func() value { return &cdiv1.DataSource{} }},
}

var (
	kubevirt = []string{"kubevirt.io/v1", "kubevirt.io/v1alpha3"}
	core     = []string{"v1"}
	cdi      = []string{cdiv1.SchemeGroupVersion.String()}

	instancetypes = []string{instancetypev1.SchemeGroupVersion.String()}
)

// skipped are the kinds, by group, that are often in the same files and of which a Pod uses the name only. The package
// comment has the reason.
var skipped = map[schema.GroupKind]bool{
	{Kind: "Secret"}:         true,
	{Kind: "Service"}:        true,
	{Kind: "ServiceAccount"}: true,
	{Group: "networking.k8s.io", Kind: "NetworkPolicy"}: true,
}

const vmKind = "VirtualMachine"

// networkAttachmentDefinition is the schema of a definition. Only its metadata is kept.
type networkAttachmentDefinition struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              struct {
		Config string `json:"config"`
	} `json:"spec"`
}

// DeepCopyObject implements runtime.Object.
func (d *networkAttachmentDefinition) DeepCopyObject() runtime.Object {
	c := *d
	c.ObjectMeta = *d.ObjectMeta.DeepCopy()
	return &c
}

// unread returns why objects of a kind are not supported, and how to fix it.
func unread(apiVersion, name string) (field, reason, remedy string) {
	if k, known := kinds[name]; known {
		return "apiVersion", apiVersion + " is not supported", "use " + k.versions[0]
	}
	return "kind", apiVersion + " " + name + " is not supported",
		"remove it; supported kinds: " + strings.Join(slices.Sorted(maps.Keys(kinds)), ", ")
}
