// SPDX-License-Identifier: Apache-2.0

package template_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation"
	v1 "kubevirt.io/api/core/v1"
	exportv1 "kubevirt.io/api/export/v1"

	"github.com/virtloom/virtloom/template"
	"github.com/virtloom/virtloom/template/render"
)

// exportInput returns an export without a VMI.
func exportInput(changes ...func(*template.Input)) template.Input {
	in := template.Input{
		Config: template.Config{ExporterImage: "example.com/virt-exportserver:v1"},
		Export: &render.Export{Object: &exportv1.VirtualMachineExport{
			ObjectMeta: metav1.ObjectMeta{Name: "backup", Namespace: "default", UID: "e-1"},
		}},
	}
	for _, change := range changes {
		change(&in)
	}
	return in
}

// serving configures the exporter to serve claims.
func serving(claims ...*corev1.PersistentVolumeClaim) func(*template.Input) {
	return func(in *template.Input) {
		in.Export.Server = &render.ExportServer{Claims: claims, CertificateSecret: "key-pair", TokenSecret: "backup-token"}
	}
}

func exportedClaim(name string, mode corev1.PersistentVolumeMode, annotations map[string]string) *corev1.PersistentVolumeClaim {
	return &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", UID: "pvc", Annotations: annotations},
		Spec:       corev1.PersistentVolumeClaimSpec{VolumeMode: &mode},
	}
}

func exporterPod(t *testing.T, in template.Input) *corev1.Pod {
	t.Helper()
	pod, err := template.Default().Exporter(in)
	if err != nil {
		t.Fatal(err)
	}
	return pod
}

func TestSpecExporter(t *testing.T) {
	yes, no := true, false
	t.Run("150: bare exporter", func(t *testing.T) {
		in := exportInput()
		in.Export.Object.Labels = map[string]string{"app": "backup"}
		want := &corev1.Pod{
			TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
			ObjectMeta: metav1.ObjectMeta{
				Name: "virt-export-backup", Namespace: "default", Labels: map[string]string{"kubevirt.io": "virt-exporter"},
				OwnerReferences: []metav1.OwnerReference{{
					APIVersion: "export.kubevirt.io/v1", Kind: "VirtualMachineExport", Name: "backup", UID: "e-1",
					Controller: &yes, BlockOwnerDeletion: &yes,
				}},
			},
			Spec: corev1.PodSpec{
				RestartPolicy: corev1.RestartPolicyNever,
				Containers: []corev1.Container{{
					Name: "exporter", Image: "example.com/virt-exportserver:v1", ImagePullPolicy: corev1.PullIfNotPresent,
					Env: []corev1.EnvVar{{Name: "POD_NAME", ValueFrom: &corev1.EnvVarSource{
						FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.name"},
					}}},
					SecurityContext: &corev1.SecurityContext{
						AllowPrivilegeEscalation: &no, Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
					},
					Resources: corev1.ResourceRequirements{
						Requests: list("cpu", "100m", "memory", "200Mi"), Limits: list("cpu", "1", "memory", "1024Mi"),
					},
				}},
			},
		}
		if diff := cmp.Diff(want, exporterPod(t, in)); diff != "" {
			t.Error(diff)
		}
	})
	t.Run("150: configuration", func(t *testing.T) {
		pod := exporterPod(t, exportInput(func(in *template.Input) {
			in.Config.ImagePullPolicy, in.Config.ImagePullSecret = corev1.PullAlways, "pull"
			in.Config.ContainerResources = []v1.SupportContainerResources{{
				Type: v1.VMExport, Resources: v1.ResourceRequirementsWithoutClaims{Requests: list("cpu", "300m"), Limits: list("memory", "2Gi")},
			}}
			in.Export.NamePrefix = "copy"
		}))
		c := container(t, pod, "exporter")
		want := corev1.ResourceRequirements{Requests: list("cpu", "300m", "memory", "200Mi"), Limits: list("cpu", "1", "memory", "2Gi")}
		if diff := cmp.Diff(want, c.Resources); diff != "" {
			t.Error(diff)
		}
		if pod.Name != "copy-backup" || c.ImagePullPolicy != corev1.PullAlways ||
			!cmp.Equal(pod.Spec.ImagePullSecrets, []corev1.LocalObjectReference{{Name: "pull"}}) {
			t.Errorf("name %q, pull policy %q, pull secrets %v", pod.Name, c.ImagePullPolicy, pod.Spec.ImagePullSecrets)
		}
	})
	t.Run("a VMI is of no account", func(t *testing.T) {
		in := exportInput()
		in.VMI, in.Migration = newVMI(requests("cpu", "1", "memory", "1Gi"), limits("cpu", "1", "memory", "1Gi")), &render.Migration{}
		if diff := cmp.Diff(exporterPod(t, exportInput()), exporterPod(t, in)); diff != "" {
			t.Error(diff)
		}
	})
}

func TestSpecExporterNames(t *testing.T) {
	a := func(n int) string { return strings.Repeat("a", n) }
	for name, tc := range map[string]struct{ prefix, export, want string }{
		"default prefix":                     {"", "backup", "virt-export-backup"},
		"dots":                               {"", "team.backup", "virt-export-team.backup"},
		"just fits":                          {"", a(51), "virt-export-" + a(51)},
		"prefix shortened":                   {"", a(52), "v-efa2f187-" + a(52)},
		"no room for any prefix":             {"", a(60), "virt-export-6ce6b0a2"},
		"would begin with a dash":            {"", a(53), "virt-export-"},
		"long prefix shortened":              {strings.Repeat("p", 60), a(10), strings.Repeat("p", 43) + "-"},
		"long prefix and name share nothing": {strings.Repeat("p", 60), a(60), strings.Repeat("p", 54) + "-"},
	} {
		t.Run(name, func(t *testing.T) {
			in := exportInput()
			in.Export.NamePrefix, in.Export.Object.Name = tc.prefix, tc.export
			got := exporterPod(t, in).Name
			if exact := !strings.HasSuffix(tc.want, "-"); exact && got != tc.want || !strings.HasPrefix(got, tc.want) {
				t.Errorf("got %q, want %q", got, tc.want)
			}
			if got != template.ExporterName(in.Export) {
				t.Errorf("ExporterName is %q, the Pod's name %q", template.ExporterName(in.Export), got)
			}
			if len(got) > 63 {
				t.Errorf("%q has %d characters", got, len(got))
			}
		})
	}
	if x, y := a(60), a(59)+"b"; template.ExporterName(&render.Export{Object: &exportv1.VirtualMachineExport{ObjectMeta: metav1.ObjectMeta{Name: x}}}) ==
		template.ExporterName(&render.Export{Object: &exportv1.VirtualMachineExport{ObjectMeta: metav1.ObjectMeta{Name: y}}}) {
		t.Errorf("%s and %s share a name", x, y)
	}
}

func FuzzExporterNames(f *testing.F) {
	for _, n := range []int{1, 51, 52, 53, 54, 62, 63, 253} {
		f.Add(strings.Repeat("a", n))
	}
	f.Add("a.b-" + strings.Repeat("c", 60) + ".d")
	f.Fuzz(func(t *testing.T, name string) {
		if len(validation.IsDNS1123Subdomain(name)) > 0 {
			return // the API server rejects such an export
		}
		in := exportInput(serving(exportedClaim(name, corev1.PersistentVolumeFilesystem, nil)))
		in.Export.Object.Name = name
		pod := exporterPod(t, in)
		if problems := validation.IsDNS1123Subdomain(pod.Name); len(problems) > 0 || len(pod.Name) > 63 {
			t.Errorf("name %q: %v", pod.Name, problems)
		}
		for key, value := range pod.Labels {
			if problems := validation.IsValidLabelValue(value); len(problems) > 0 {
				t.Errorf("label %s=%q: %v", key, value, problems)
			}
		}
		for _, v := range pod.Spec.Volumes {
			if problems := validation.IsDNS1123Label(v.Name); len(problems) > 0 {
				t.Errorf("volume %q: %v", v.Name, problems)
			}
		}
	})
}

func TestSpecExportServer(t *testing.T) {
	yes, group := true, int64(107)
	in := exportInput(serving(
		exportedClaim("disk", corev1.PersistentVolumeBlock, nil),
		exportedClaim("data.v1", corev1.PersistentVolumeFilesystem, nil),
	))
	in.Export.Server.ManifestConfigMap = "exporter-vm-manifest-backup"
	in.Export.Server.CertificateParameters = `{"Duration":1}`
	in.Export.Server.Deadline = metav1.NewTime(time.Date(2026, 1, 2, 3, 4, 5, 6, time.FixedZone("", 3600)))
	in.Export.Object.Labels = map[string]string{"app": "backup", "kubevirt.io.virt-export-service": "of another"}
	in.Export.Object.Annotations = map[string]string{
		"note": "n", "kubevirt.io/export.certParameters": "forged", "kubectl.kubernetes.io/last-applied-configuration": "{}",
	}
	pod := exporterPod(t, in)
	c := container(t, pod, "exporter")
	secret := func(name, secret string) corev1.Volume {
		return corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: secret}}}
	}
	claimed := func(name, claim string) corev1.Volume {
		return corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim},
		}}
	}
	for what, diff := range map[string]string{
		"labels":      cmp.Diff(map[string]string{"app": "backup", "kubevirt.io.virt-export-service": "backup"}, pod.Labels),
		"annotations": cmp.Diff(map[string]string{"note": "n", "kubevirt.io/export.certParameters": `{"Duration":1}`}, pod.Annotations),
		"security": cmp.Diff(&corev1.PodSecurityContext{
			RunAsNonRoot: &yes, FSGroup: &group, SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
		}, pod.Spec.SecurityContext),
		"environment": cmp.Diff([]corev1.EnvVar{
			{Name: "CERT_FILE", Value: "/cert/tls.crt"},
			{Name: "KEY_FILE", Value: "/cert/tls.key"},
			{Name: "TOKEN_FILE", Value: "/token/token"},
			{Name: "DEADLINE", Value: "2026-01-02T02:04:05Z"},
			{Name: "EXPORT_SECRET_DEF_URI", Value: "/manifests/secret"},
			{Name: "VOLUME0_EXPORT_PATH", Value: "/dev/export-volumes/disk"},
			{Name: "VOLUME0_EXPORT_RAW_URI", Value: "/volumes/disk/disk.img"},
			{Name: "VOLUME0_EXPORT_RAW_GZIP_URI", Value: "/volumes/disk/disk.img.gz"},
			{Name: "VOLUME1_EXPORT_PATH", Value: "/export-volumes/data-v1"},
			{Name: "VOLUME1_EXPORT_ARCHIVE_URI", Value: "/volumes/data.v1/disk.tar.gz"},
			{Name: "VOLUME1_EXPORT_DIR_URI", Value: "/volumes/data.v1/dir/"},
			{Name: "EXPORT_VM_DEF_URI", Value: "/manifests/all"},
		}, c.Env[1:]),
		"volumes": cmp.Diff([]corev1.Volume{
			secret("certificates", "key-pair"), secret("token", "backup-token"), claimed("disk", "disk"), claimed("data-v1", "data.v1"),
			{Name: "manifest-data", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{
				LocalObjectReference: corev1.LocalObjectReference{Name: "exporter-vm-manifest-backup"},
			}}},
		}, pod.Spec.Volumes),
		"mounts": cmp.Diff([]corev1.VolumeMount{
			{Name: "certificates", MountPath: "/cert"}, {Name: "token", MountPath: "/token"},
			{Name: "data-v1", MountPath: "/export-volumes/data-v1", ReadOnly: true}, {Name: "manifest-data", MountPath: "/manifest_data"},
		}, c.VolumeMounts),
		"devices": cmp.Diff([]corev1.VolumeDevice{{Name: "disk", DevicePath: "/dev/export-volumes/disk"}}, c.VolumeDevices),
		"probe": cmp.Diff(&corev1.Probe{
			ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{
				Scheme: corev1.URISchemeHTTPS, Path: "/exportready", Port: intstr.FromInt32(8443),
			}},
			InitialDelaySeconds: 5, PeriodSeconds: 5,
		}, c.ReadinessProbe),
	} {
		if diff != "" {
			t.Errorf("%s:\n%s", what, diff)
		}
	}
}

func TestSpecExportServer_WithoutOptions(t *testing.T) {
	pod := exporterPod(t, exportInput(serving()))
	for _, e := range container(t, pod, "exporter").Env {
		if e.Name == "DEADLINE" || e.Name == "EXPORT_VM_DEF_URI" || strings.HasPrefix(e.Name, "VOLUME") {
			t.Errorf("unwanted variable %v", e)
		}
	}
	if len(pod.Spec.Volumes) != 2 || len(pod.Annotations) != 0 {
		t.Errorf("volumes %v, annotations %v", pod.Spec.Volumes, pod.Annotations)
	}
	if diff := cmp.Diff(map[string]string{"kubevirt.io.virt-export-service": "backup"}, pod.Labels); diff != "" {
		t.Error(diff)
	}
}

func TestSpecExportedContent(t *testing.T) {
	yes := true
	content := func(value string) map[string]string {
		return map[string]string{"cdi.kubevirt.io/storage.contentType": value}
	}
	owned := func(version, kind string, controller *bool) func(*corev1.PersistentVolumeClaim) {
		return func(c *corev1.PersistentVolumeClaim) {
			c.OwnerReferences = []metav1.OwnerReference{{APIVersion: version, Kind: kind, Name: "x", Controller: controller}}
		}
	}
	for name, tc := range map[string]struct {
		mode        corev1.PersistentVolumeMode
		annotations map[string]string
		given       func(*corev1.PersistentVolumeClaim)
		disk        bool
	}{
		"block device":                {corev1.PersistentVolumeBlock, nil, nil, true},
		"block device of an archive":  {corev1.PersistentVolumeBlock, content("archive"), nil, true},
		"disk by CDI":                 {corev1.PersistentVolumeFilesystem, content("kubevirt"), nil, true},
		"disk by CDI, empty type":     {corev1.PersistentVolumeFilesystem, content(""), nil, true},
		"archive by CDI":              {corev1.PersistentVolumeFilesystem, content("archive"), owned("cdi.kubevirt.io/v1beta1", "DataVolume", &yes), false},
		"unmarked":                    {corev1.PersistentVolumeFilesystem, nil, nil, false},
		"of a DataVolume":             {corev1.PersistentVolumeFilesystem, nil, owned("cdi.kubevirt.io/v1beta1", "DataVolume", &yes), true},
		"of something else":           {corev1.PersistentVolumeFilesystem, nil, owned("apps/v1", "StatefulSet", &yes), false},
		"of a DataVolume in name":     {corev1.PersistentVolumeFilesystem, nil, owned("example.com/v1", "DataVolume", &yes), false},
		"not controlled by its owner": {corev1.PersistentVolumeFilesystem, nil, owned("cdi.kubevirt.io/v1beta1", "DataVolume", nil), false},
	} {
		t.Run(name, func(t *testing.T) {
			claim := exportedClaim("c", tc.mode, tc.annotations)
			if tc.given != nil {
				tc.given(claim)
			}
			var uris []string
			for _, e := range container(t, exporterPod(t, exportInput(serving(claim))), "exporter").Env {
				if strings.HasPrefix(e.Name, "VOLUME0_") && strings.HasSuffix(e.Name, "_URI") {
					uris = append(uris, e.Name+"="+e.Value)
				}
			}
			want := []string{"VOLUME0_EXPORT_ARCHIVE_URI=/volumes/c/disk.tar.gz", "VOLUME0_EXPORT_DIR_URI=/volumes/c/dir/"}
			if tc.disk {
				want = []string{"VOLUME0_EXPORT_RAW_URI=/volumes/c/disk.img", "VOLUME0_EXPORT_RAW_GZIP_URI=/volumes/c/disk.img.gz"}
			}
			if diff := cmp.Diff(want, uris); diff != "" {
				t.Error(diff)
			}
		})
	}
}
