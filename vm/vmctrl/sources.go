// SPDX-License-Identifier: Apache-2.0

package vmctrl

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	v1 "kubevirt.io/api/core/v1"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"

	"github.com/virtloom/virtloom/vm"
)

// sources checks what the DataVolumes copy that are missing: whether it exists, and whether the service account of the VM may
// copy it, by CDI's own rules. None is created that was not checked. What it finds has no event, so it is checked again later.
func (r gatherer) sources(ctx context.Context, g *gathered) error {
	if g.VM.DeletionTimestamp != nil || len(g.Pending) > 0 || g.VM.Spec.Template == nil {
		return nil
	}
	g.Denied, g.NoSource, g.copied = map[string]string{}, map[string]string{}, map[string]*cdiv1.DataVolumeSource{}
	templates := g.VM.Spec.DataVolumeTemplates
	for i := range templates {
		t := &templates[i]
		switch {
		case g.DataVolumes[t.Name] != nil:
		case len(templates) > vm.MaxDataVolumeTemplates: // each costs requests
			g.Denied[t.Name] = fmt.Sprintf("spec.dataVolumeTemplates has %d entries; use %d at most", len(templates), vm.MaxDataVolumeTemplates)
		case !r.kinds.Serves(dvKind):
			g.Denied[t.Name] = "the cluster does not serve DataVolumes; install CDI"
		case r.observes: // the answer is a write
		default:
			if err := r.source(ctx, g, t); err != nil {
				return fmt.Errorf("vmctrl: check the source of DataVolume %s of VirtualMachine %s: %w", t.Name, g.owner.Key, err)
			}
		}
	}
	if len(g.Denied) > 0 {
		g.lookAt(r.Clock.Now().Add(lastRetry))
	}
	return nil
}

// source checks what the DataVolume of one template copies.
func (r gatherer) source(ctx context.Context, g *gathered, t *v1.DataVolumeTemplateSpec) error {
	dv := &cdiv1.DataVolume{ObjectMeta: metav1.ObjectMeta{Name: t.Name, Namespace: g.VM.Namespace, Annotations: t.Annotations}, Spec: t.Spec}
	answer, err := dv.AuthorizeSA(g.VM.Namespace, t.Name, reviewer{r, ctx}, g.VM.Namespace, serviceAccount(&g.VM.Spec.Template.Spec))
	switch {
	case errors.Is(err, cdiv1.ErrNoTokenOkay): // it copies nothing of this cluster
		return nil
	case apierrors.IsNotFound(err):
		g.Denied[t.Name] = err.Error()
		return nil
	case err != nil:
		return err
	case !answer.Allowed:
		g.Denied[t.Name] = answer.Reason
		return nil
	}
	at := types.NamespacedName{Namespace: cmp.Or(answer.Handler.SourceNamespace, g.VM.Namespace), Name: answer.Handler.SourceName}
	if answer.Handler.TokenResource.Resource != "persistentvolumeclaims" {
		g.copied[t.Name] = &cdiv1.DataVolumeSource{Snapshot: &cdiv1.DataVolumeSourceSnapshot{Namespace: at.Namespace, Name: at.Name}}
		return nil
	}
	g.copied[t.Name] = &cdiv1.DataVolumeSource{PVC: &cdiv1.DataVolumeSourcePVC{Namespace: at.Namespace, Name: at.Name}}
	claim := &metav1.PartialObjectMetadata{}
	claim.SetGroupVersionKind(claimKind)
	if err := r.APIReader.Get(ctx, at, claim); apierrors.IsNotFound(err) {
		g.NoSource[t.Name] = at.Name
	} else if err != nil {
		return err
	}
	return nil
}

// reviewer gives CDI's rules what they ask for, from the API server.
type reviewer struct {
	gatherer
	ctx context.Context //nolint:containedctx // the interface of CDI has none
}

var _ cdiv1.AuthorizationHelperProxy = reviewer{}

// +kubebuilder:rbac:groups=authorization.k8s.io,resources=subjectaccessreviews,verbs=create
// +kubebuilder:rbac:groups="",resources=namespaces;persistentvolumeclaims,verbs=get
// +kubebuilder:rbac:groups=cdi.kubevirt.io,resources=datasources,verbs=get

// CreateSar implements AuthorizationHelperProxy.
func (r reviewer) CreateSar(review *authorizationv1.SubjectAccessReview) (*authorizationv1.SubjectAccessReview, error) {
	return review, r.Client.Create(r.ctx, review)
}

// GetNamespace implements AuthorizationHelperProxy. CDI's rules want to know whether it exists.
func (r reviewer) GetNamespace(name string) (*corev1.Namespace, error) {
	namespace := &corev1.Namespace{}
	return namespace, r.APIReader.Get(r.ctx, types.NamespacedName{Name: name}, namespace)
}

// GetDataSource implements AuthorizationHelperProxy.
func (r reviewer) GetDataSource(namespace, name string) (*cdiv1.DataSource, error) {
	source := &cdiv1.DataSource{}
	return source, r.APIReader.Get(r.ctx, types.NamespacedName{Namespace: namespace, Name: name}, source)
}

// serviceAccount returns the service account in whose name the volumes of a VM are copied.
func serviceAccount(spec *v1.VirtualMachineInstanceSpec) string {
	if spec.ServiceAccountName != "" {
		return spec.ServiceAccountName
	}
	for _, v := range spec.Volumes {
		if v.ServiceAccount != nil {
			return v.ServiceAccount.ServiceAccountName
		}
	}
	return "default"
}
