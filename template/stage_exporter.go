// SPDX-License-Identifier: Apache-2.0

package template

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	v1 "kubevirt.io/api/core/v1"
	exportv1 "kubevirt.io/api/export/v1"

	"github.com/virtloom/virtloom/template/render"
)

const exporterContainer = "exporter"

// exporter adds the bare exporter Pod, without a server.
func exporter(d *render.Draft) error {
	export := d.Input().Export.Object
	name := ExporterName(d.Input().Export)
	if problems := validation.IsDNS1123Subdomain(name); len(problems) > 0 {
		return render.Invalid("Input.Export.NamePrefix", fmt.Sprintf("results in the name %q: %s", name, problems[0]),
			"begin with a lower case letter and use letters, digits and dashes")
	}
	d.From("metadata.name, Input.Export.NamePrefix").Set("metadata.name", func(p *corev1.Pod) { p.Name = name })
	d.From("metadata.namespace").Set("metadata.namespace", func(p *corev1.Pod) { p.Namespace = export.Namespace })
	d.From("metadata.uid").Set("metadata.ownerReferences", func(p *corev1.Pod) {
		p.OwnerReferences = []metav1.OwnerReference{
			*metav1.NewControllerRef(export, exportv1.SchemeGroupVersion.WithKind("VirtualMachineExport")),
		}
	})
	d.Label(v1.AppLabel, exportv1.App)
	d.Set("spec.restartPolicy", func(p *corev1.Pod) { p.Spec.RestartPolicy = corev1.RestartPolicyNever })
	d.From("Config.ExporterImage").AddContainer(corev1.Container{
		Name:            exporterContainer,
		Image:           d.Config().ExporterImage,
		ImagePullPolicy: d.Config().ImagePullPolicy,
		SecurityContext: &corev1.SecurityContext{
			AllowPrivilegeEscalation: new(bool),
			Capabilities:             &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
		},
		Resources: configuredResources(d, v1.VMExport,
			amounts{cpu: "100m", memory: "200Mi"}, amounts{cpu: "1", memory: "1024Mi"}),
	})
	d.From("Config.ImagePullSecret").PullSecret(d.Config().ImagePullSecret)
	d.Container(exporterContainer).Env(corev1.EnvVar{Name: "POD_NAME", ValueFrom: &corev1.EnvVarSource{
		FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.name"},
	}})
	return nil
}
