// SPDX-License-Identifier: Apache-2.0

package template

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/template/render"
)

const (
	exportServiceLabel   = "kubevirt.io.virt-export-service"   // selector of the export's Service
	certParamsAnnotation = "kubevirt.io/export.certParameters" // KubeVirt's controller replaces Pods with an outdated value
	exportPort           = 8443

	// Volumes and folders of the exporter, as its server and KubeVirt's controller expect them.
	certificateVolume, certificateDir = "certificates", "/cert"
	tokenVolume, tokenDir             = "token", "/token"
	manifestVolume, manifestDir       = "manifest-data", "/manifest_data"
)

// exportServer completes the exporter to one that serves claims and optional manifests.
func exportServer(d *render.Draft) error {
	s := d.Input().Export.Server
	if s == nil {
		return nil
	}
	claims, err := exportedClaims(d)
	if err != nil {
		return err
	}
	exportMetadata(d, s)
	d.Set("spec.securityContext", func(p *corev1.Pod) {
		group, yes := render.QEMUUser, true
		p.Spec.SecurityContext = &corev1.PodSecurityContext{
			RunAsNonRoot: &yes, FSGroup: &group,
			SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
		}
	})
	exportEnv(d, s)
	exportVolumes(d, s)
	for i, c := range claims {
		c.serve(d, i)
	}
	if s.ManifestConfigMap != "" {
		exportManifests(d, s.ManifestConfigMap)
	}
	d.Container(exporterContainer).Set("readinessProbe", func(c *corev1.Container) {
		c.ReadinessProbe = &corev1.Probe{
			ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{
				Scheme: corev1.URISchemeHTTPS, Path: "/exportready", Port: intstr.FromInt32(exportPort),
			}},
			InitialDelaySeconds: 5, PeriodSeconds: 5,
		}
	})
	return nil
}

// exportMetadata replaces the label of the bare exporter. The export's labels and annotations are copied, except for those
// by which its Service and its controller find the Pod.
func exportMetadata(d *render.Draft, s *render.ExportServer) {
	export := d.Input().Export.Object
	d.Drop("metadata.labels[" + v1.AppLabel + "]")
	for _, key := range sortedKeys(export.Labels) {
		d.From("metadata.labels").Label(key, export.Labels[key])
	}
	d.From("metadata.name").Label(exportServiceLabel, exportLabel(export.Name))
	for _, key := range sortedKeys(export.Annotations) {
		if !private(key) {
			d.From("metadata.annotations").Annotation(key, export.Annotations[key])
		}
	}
	if s.CertificateParameters != "" {
		d.From("Input.Export.Server.CertificateParameters").Annotation(certParamsAnnotation, s.CertificateParameters)
	}
}

// exportLabel returns the export's name as a label value.
func exportLabel(name string) string {
	if len(name) <= maxLabel {
		return name
	}
	return joinName(exportPrefix, name)
}

func exportEnv(d *render.Draft, s *render.ExportServer) {
	env := func(from, name, value string) {
		d.From(from).Container(exporterContainer).Env(corev1.EnvVar{Name: name, Value: value})
	}
	env("Input.Export.Server.CertificateSecret", "CERT_FILE", certificateDir+"/tls.crt")
	env("Input.Export.Server.CertificateSecret", "KEY_FILE", certificateDir+"/tls.key")
	env("Input.Export.Server.TokenSecret", "TOKEN_FILE", tokenDir+"/token")
	if !s.Deadline.IsZero() {
		env("Input.Export.Server.Deadline", "DEADLINE", s.Deadline.UTC().Format(time.RFC3339))
	}
	env("", "EXPORT_SECRET_DEF_URI", "/manifests/secret")
}

func exportVolumes(d *render.Draft, s *render.ExportServer) {
	for _, v := range []struct{ from, name, dir, secret string }{
		{"Input.Export.Server.CertificateSecret", certificateVolume, certificateDir, s.CertificateSecret},
		{"Input.Export.Server.TokenSecret", tokenVolume, tokenDir, s.TokenSecret},
	} {
		d.From(v.from).Volume(corev1.Volume{Name: v.name, VolumeSource: corev1.VolumeSource{
			Secret: &corev1.SecretVolumeSource{SecretName: v.secret},
		}})
		d.From(v.from).Container(exporterContainer).Mount(corev1.VolumeMount{Name: v.name, MountPath: v.dir})
	}
}

// exportManifests adds the manifests of the exported machine to the server.
func exportManifests(d *render.Draft, configMap string) {
	from := d.From("Input.Export.Server.ManifestConfigMap")
	from.Container(exporterContainer).Env(corev1.EnvVar{Name: "EXPORT_VM_DEF_URI", Value: "/manifests/all"})
	from.Volume(corev1.Volume{Name: manifestVolume, VolumeSource: corev1.VolumeSource{
		ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: configMap}},
	}})
	from.Container(exporterContainer).Mount(corev1.VolumeMount{Name: manifestVolume, MountPath: manifestDir})
}
