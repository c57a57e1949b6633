// SPDX-License-Identifier: Apache-2.0

package templatectrl

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/validate/content"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	v1 "kubevirt.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/virtloom/virtloom/template/render"
)

// gateExternalNetInject is enabled if a webhook, not the template, requests the devices of networks.
const gateExternalNetInject = "ExternalNetResourceInjection"

var (
	configMapKind = schema.GroupVersionKind{Version: "v1", Kind: "ConfigMap"}
	networkKind   = schema.GroupVersionKind{Group: "k8s.cni.cncf.io", Version: "v1", Kind: "NetworkAttachmentDefinition"}
)

var errNoClient = errors.New("templatectrl: Gatherer.Client is required")

// Gatherer reads the input of package template. It has no side effects and no state, and is safe for concurrent use. Errors
// name the object that could not be read.
type Gatherer struct {
	// Client reads claims, quotas, Namespaces, Nodes and KubeVirt objects; mgr.GetClient() reads them from caches. Required.
	// Its scheme must include core/v1 and kubevirt.io/v1.
	Client client.Reader
	// Live reads the metadata of ConfigMaps and NetworkAttachmentDefinitions, which few VMIs refer to. Set it to
	// mgr.GetAPIReader(), so that neither is cached. Defaults to Client.
	Live client.Reader
	// StateIndex is the name of an index of claims in Client's cache by the value of their label PersistentStateLabel.
	// Defaults to none: then all claims of the namespace are listed.
	StateIndex string
}

// Facts returns the objects of the cluster that the VMI refers to, with the given configuration. Missing objects are
// omitted, except for the Namespace, which is an error: the VMI is being deleted or is ahead of the cache of Namespaces.
// claims are those of [Gatherer.Claims], if the caller has read them; else nil. The result is owned by the caller.
func (g *Gatherer) Facts(
	ctx context.Context, vmi *v1.VirtualMachineInstance, config render.Config, claims map[string]*corev1.PersistentVolumeClaim,
) (render.Facts, error) {
	f := render.Facts{Claims: claims}
	if g.Client == nil {
		return f, errNoClient
	}
	var err error
	if f.NamespaceLabels, err = g.NamespaceLabels(ctx, vmi.Namespace); err != nil {
		return f, err
	}
	if f.Quotas, err = g.quotas(ctx, vmi.Namespace); err != nil {
		return f, err
	}
	if claims == nil {
		if f.Claims, err = g.Claims(ctx, vmi); err != nil {
			return f, err
		}
	}
	if f.ConfigMaps, err = g.configMaps(ctx, vmi); err != nil {
		return f, err
	}
	if !config.GateEnabled(gateExternalNetInject) {
		f.NetworkAttachmentDefinitions, err = g.networks(ctx, vmi)
	}
	return f, err
}

// TargetFacts returns the Facts for the target Pod of a migration: in addition to the VMI's own claims, the claim for its
// state on the target, which the migration names or which is labelled kubevirt.io/migrationName with its name.
func (g *Gatherer) TargetFacts(ctx context.Context, vmi *v1.VirtualMachineInstance, config render.Config, m render.Migration) (render.Facts, error) {
	f, err := g.Facts(ctx, vmi, config, nil)
	if err != nil {
		return f, err
	}
	claim := &corev1.PersistentVolumeClaim{}
	found, err := readObject(ctx, g.Client, "PersistentVolumeClaim", types.NamespacedName{Namespace: vmi.Namespace, Name: m.StateClaim}, claim)
	if err != nil {
		return f, err
	}
	if found {
		f.Claims[claim.Name] = claim
	}
	return f, g.labelled(ctx, vmi.Namespace, v1.MigrationNameLabel, m.Name, f.Claims)
}

// +kubebuilder:rbac:groups=kubevirt.io,resources=kubevirts,verbs=list;watch

// KubeVirt returns the cluster's KubeVirt object, nil if there is none. KubeVirt's operator rejects a second one; of
// several, the oldest is returned.
func (g *Gatherer) KubeVirt(ctx context.Context) (*v1.KubeVirt, error) {
	if g.Client == nil {
		return nil, errNoClient
	}
	var list v1.KubeVirtList
	if err := g.Client.List(ctx, &list); err != nil {
		return nil, fmt.Errorf("templatectrl: list KubeVirt objects: %w", err)
	}
	var oldest *v1.KubeVirt
	for i := range list.Items {
		if kv := &list.Items[i]; oldest == nil || older(kv, oldest) < 0 {
			oldest = kv
		}
	}
	return oldest, nil
}

// older orders objects by age, then by namespace and name.
func older(a, b *v1.KubeVirt) int {
	return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time),
		cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
}

// +kubebuilder:rbac:groups="",resources=nodes,verbs=list;watch

// SourceNode returns the Node of a migration's source Pod. It returns nil, which is valid for
// render.Migration.SourceNode, if there is no Pod, it has no node, or the Node does not exist.
func (g *Gatherer) SourceNode(ctx context.Context, source *corev1.Pod) (*corev1.Node, error) {
	if g.Client == nil {
		return nil, errNoClient
	}
	if source == nil {
		return nil, nil //nolint:nilnil // absence is an answer
	}
	node := &corev1.Node{}
	found, err := readObject(ctx, g.Client, "Node", types.NamespacedName{Name: source.Spec.NodeName}, node)
	if !found {
		return nil, err
	}
	return node, nil
}

// +kubebuilder:rbac:groups="",resources=namespaces,verbs=list;watch

// NamespaceLabels returns the labels of a Namespace. A missing Namespace is an error.
func (g *Gatherer) NamespaceLabels(ctx context.Context, name string) (map[string]string, error) {
	if g.Client == nil {
		return nil, errNoClient
	}
	ns := &corev1.Namespace{}
	if err := g.Client.Get(ctx, types.NamespacedName{Name: name}, ns); err != nil {
		return nil, fmt.Errorf("templatectrl: read Namespace %s: %w", name, err)
	}
	return ns.Labels, nil
}

// +kubebuilder:rbac:groups="",resources=resourcequotas,verbs=list;watch

func (g *Gatherer) quotas(ctx context.Context, namespace string) ([]*corev1.ResourceQuota, error) {
	var list corev1.ResourceQuotaList
	if err := g.Client.List(ctx, &list, client.InNamespace(namespace)); err != nil {
		return nil, fmt.Errorf("templatectrl: list ResourceQuotas of namespace %s: %w", namespace, err)
	}
	var quotas []*corev1.ResourceQuota
	for i := range list.Items {
		quotas = append(quotas, &list.Items[i])
	}
	return quotas, nil
}

// +kubebuilder:rbac:groups="",resources=persistentvolumeclaims,verbs=list;watch

// Claims returns the claims that the VMI names, those of its DataVolumes included, and those that are labelled as its
// state, by name. Missing ones are omitted.
func (g *Gatherer) Claims(ctx context.Context, vmi *v1.VirtualMachineInstance) (map[string]*corev1.PersistentVolumeClaim, error) {
	if g.Client == nil {
		return nil, errNoClient
	}
	claims := map[string]*corev1.PersistentVolumeClaim{}
	for _, name := range ClaimNames(vmi) {
		claim := &corev1.PersistentVolumeClaim{}
		found, err := readObject(ctx, g.Client, "PersistentVolumeClaim", types.NamespacedName{Namespace: vmi.Namespace, Name: name}, claim)
		if err != nil {
			return nil, err
		}
		if found {
			claims[name] = claim
		}
	}
	if g.StateIndex != "" {
		return claims, g.indexed(ctx, vmi, claims)
	}
	return claims, g.labelled(ctx, vmi.Namespace, PersistentStateLabel, vmi.Name, claims)
}

// indexed adds the claims that are labelled as the VMI's state, by index.
func (g *Gatherer) indexed(ctx context.Context, vmi *v1.VirtualMachineInstance, claims map[string]*corev1.PersistentVolumeClaim) error {
	var list corev1.PersistentVolumeClaimList
	if err := g.Client.List(ctx, &list, client.InNamespace(vmi.Namespace), client.MatchingFields{g.StateIndex: vmi.Name}); err != nil {
		return fmt.Errorf("templatectrl: list PersistentVolumeClaims with the state of %s/%s: %w", vmi.Namespace, vmi.Name, err)
	}
	for i := range list.Items {
		claims[list.Items[i].Name] = &list.Items[i]
	}
	return nil
}

// labelled adds the claims with the label.
func (g *Gatherer) labelled(ctx context.Context, namespace, label, value string, claims map[string]*corev1.PersistentVolumeClaim) error {
	if value == "" || len(validation.IsValidLabelValue(value)) > 0 {
		return nil // no label has a value of this length
	}
	var list corev1.PersistentVolumeClaimList
	if err := g.Client.List(ctx, &list, client.InNamespace(namespace), client.MatchingLabels{label: value}); err != nil {
		return fmt.Errorf("templatectrl: list PersistentVolumeClaims of namespace %s with label %s=%s: %w", namespace, label, value, err)
	}
	for i := range list.Items {
		claims[list.Items[i].Name] = &list.Items[i]
	}
	return nil
}

func (g *Gatherer) configMaps(ctx context.Context, vmi *v1.VirtualMachineInstance) (map[string]bool, error) {
	exist := map[string]bool{}
	for _, name := range configMapNames(vmi) {
		key := types.NamespacedName{Namespace: vmi.Namespace, Name: name}
		o, err := g.metadata(ctx, configMapKind, key)
		if err != nil {
			return nil, err
		}
		if o != nil {
			exist[name] = true
		}
	}
	return exist, nil
}

func (g *Gatherer) networks(ctx context.Context, vmi *v1.VirtualMachineInstance) (map[string]*metav1.PartialObjectMetadata, error) {
	networks := map[string]*metav1.PartialObjectMetadata{}
	for _, key := range networkKeys(vmi) {
		o, err := g.metadata(ctx, networkKind, key)
		if err != nil {
			return nil, err
		}
		if o != nil {
			networks[key.Namespace+"/"+key.Name] = o
		}
	}
	return networks, nil
}

// Objects that a VMI names; list is not required.
//
// +kubebuilder:rbac:groups="",resources=configmaps,verbs=get
// +kubebuilder:rbac:groups=k8s.cni.cncf.io,resources=network-attachment-definitions,verbs=get

// metadata returns the metadata of one object; nil if there is none.
func (g *Gatherer) metadata(ctx context.Context, kind schema.GroupVersionKind, key types.NamespacedName) (*metav1.PartialObjectMetadata, error) {
	from := g.Live
	if from == nil {
		from = g.Client
	}
	o := &metav1.PartialObjectMetadata{}
	o.SetGroupVersionKind(kind)
	found, err := readObject(ctx, from, kind.Kind, key, o)
	if !found {
		return nil, err
	}
	return o, nil
}

// readObject reads one object and reports whether it exists. An invalid name of a user means that there is no object, and
// rendering reports the field. So does a kind that the cluster does not serve.
func readObject(ctx context.Context, from client.Reader, kind string, key types.NamespacedName, into client.Object) (bool, error) {
	if key.Name == "" || len(content.IsPathSegmentName(key.Name)) > 0 || len(content.IsPathSegmentName(key.Namespace)) > 0 {
		return false, nil
	}
	err := from.Get(ctx, key, into)
	switch {
	case err == nil:
		return true, nil
	case apierrors.IsNotFound(err), meta.IsNoMatchError(err):
		return false, nil
	case key.Namespace == "":
		return false, fmt.Errorf("templatectrl: read %s %s: %w", kind, key.Name, err)
	default:
		return false, fmt.Errorf("templatectrl: read %s %s: %w", kind, key, err)
	}
}
