// SPDX-License-Identifier: Apache-2.0

package template_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/template"
	"github.com/virtloom/virtloom/template/render"
)

// TestExportedClaims_NamesOfServerVolumes uses claims with the names of the Pod's own volumes.
func TestExportedClaims_NamesOfServerVolumes(t *testing.T) {
	long := strings.Repeat("c", 70)
	in := exportInput(serving(
		exportedClaim("token", corev1.PersistentVolumeFilesystem, nil), exportedClaim("manifest-data", corev1.PersistentVolumeBlock, nil),
		exportedClaim(long, corev1.PersistentVolumeFilesystem, nil),
	))
	in.Export.Server.ManifestConfigMap = "m"
	pod := exporterPod(t, in)
	names := map[string]bool{}
	for _, v := range pod.Spec.Volumes {
		if names[v.Name] || len(validation.IsDNS1123Label(v.Name)) > 0 {
			t.Errorf("volume %q", v.Name)
		}
		names[v.Name] = true
	}
	paths := map[string]string{}
	for _, e := range container(t, pod, "exporter").Env {
		paths[e.Name] = e.Value
	}
	for name, want := range map[string]string{
		"VOLUME0_EXPORT_PATH": "/export-volumes/token", "VOLUME1_EXPORT_PATH": "/dev/export-volumes/manifest-data",
		"VOLUME2_EXPORT_ARCHIVE_URI": "/volumes/" + long + "/disk.tar.gz",
	} {
		if paths[name] != want {
			t.Errorf("%s is %q, want %q", name, paths[name], want)
		}
	}
	if got := paths["VOLUME2_EXPORT_PATH"]; !strings.HasPrefix(got, "/export-volumes/virt-export-") {
		t.Errorf("the long name is served at %q", got)
	}
}

func TestExportFaults(t *testing.T) {
	file := func(name string) *corev1.PersistentVolumeClaim {
		return exportedClaim(name, corev1.PersistentVolumeFilesystem, nil)
	}
	for name, tc := range map[string]struct {
		given func(*template.Input)
		field string
	}{
		"no export":              {func(in *template.Input) { in.Export = nil }, "Input.Export.Object"},
		"no object":              {func(in *template.Input) { in.Export.Object = nil }, "Input.Export.Object"},
		"no name":                {func(in *template.Input) { in.Export.Object.Name = "" }, "metadata.name"},
		"no namespace":           {func(in *template.Input) { in.Export.Object.Namespace = "" }, "metadata.namespace"},
		"no UID":                 {func(in *template.Input) { in.Export.Object.UID = "" }, "metadata.uid"},
		"no image":               {func(in *template.Input) { in.Config.ExporterImage = "" }, "Config.ExporterImage"},
		"prefix that is no name": {func(in *template.Input) { in.Export.NamePrefix = "Virt/" }, "Input.Export.NamePrefix"},
		"no certificate": {func(in *template.Input) {
			serving()(in)
			in.Export.Server.CertificateSecret = ""
		}, "Input.Export.Server.CertificateSecret"},
		"no token": {func(in *template.Input) {
			serving()(in)
			in.Export.Server.TokenSecret = ""
		}, "Input.Export.Server.TokenSecret"},
		"no claim":              {serving(file("a"), nil), "Input.Export.Server.Claims[1]"},
		"claim without name":    {serving(file("")), "Input.Export.Server.Claims[0]"},
		"claim twice":           {serving(file("a"), file("a")), "Input.Export.Server.Claims[1]"},
		"names alike but a dot": {serving(file("a.b"), file("c"), file("a-b")), "Input.Export.Server.Claims[2]"},
		"claim of others": {func(in *template.Input) {
			claim := file("a")
			claim.Namespace = "other"
			serving(claim)(in)
		}, "Input.Export.Server.Claims[0]"},
	} {
		t.Run(name, func(t *testing.T) {
			in := exportInput()
			tc.given(&in)
			_, err := template.Default().Exporter(in)
			var e *render.Error
			if !errors.As(err, &e) {
				t.Fatalf("got %v, want a *template.Error", err)
			}
			if e.Field != tc.field || !errors.Is(err, render.ErrInvalid) || e.Remedy == "" || e.Reason == "" {
				t.Errorf("got %+v, want field %q", e, tc.field)
			}
			if !strings.HasPrefix(e.Object, "VirtualMachineExport") {
				t.Errorf("the error is about %q", e.Object)
			}
		})
	}
}

// TestExporter_StageErrors runs a stage of all Pods, whose errors name the export.
func TestExporter_StageErrors(t *testing.T) {
	for name, tc := range map[string]struct {
		apply func(*render.Draft) error
		want  string
	}{
		"error of its own": {func(*render.Draft) error { return errors.New("mine") }, "mine"},
		"field of another": {func(d *render.Draft) error { d.Label("kubevirt.io", "mine"); return nil }, "metadata.labels[kubevirt.io]"},
		"no container":     {func(d *render.Draft) error { d.Container("compute").Env(corev1.EnvVar{Name: "A"}); return nil }, "spec.containers[compute]"},
	} {
		t.Run(name, func(t *testing.T) {
			var vmi *v1.VirtualMachineInstance
			r, err := template.Default().After(template.StageExporter, render.Stage{
				Name: "mine", Pods: render.AllPods, Apply: func(d *render.Draft) error {
					vmi = d.VMI()
					return tc.apply(d)
				},
			})
			if err != nil {
				t.Fatal(err)
			}
			in := exportInput()
			in.VMI = newVMI()
			_, err = r.Exporter(in)
			if err == nil || !strings.Contains(err.Error(), "VirtualMachineExport default/backup") || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want an error of the export about %s", err, tc.want)
			}
			if vmi != nil {
				t.Errorf("the stage was given VMI %s", vmi.Name)
			}
		})
	}
}

// TestExporter_NoSharedMemory renders twice and modifies the first Pod in between.
func TestExporter_NoSharedMemory(t *testing.T) {
	in := exportInput(serving(exportedClaim("disk", corev1.PersistentVolumeBlock, nil)))
	in.Export.Object.Labels = map[string]string{"app": "backup"}
	object, claim := in.Export.Object.DeepCopy(), in.Export.Server.Claims[0].DeepCopy()
	first := exporterPod(t, in)
	want := first.DeepCopy()
	first.Labels["app"] = "changed"
	first.Spec.Volumes[2].PersistentVolumeClaim.ClaimName = "changed"
	if diff := cmp.Diff(want, exporterPod(t, in)); diff != "" {
		t.Errorf("the second Pod differs:\n%s", diff)
	}
	if diff := cmp.Diff(object, in.Export.Object) + cmp.Diff(claim, in.Export.Server.Claims[0]); diff != "" {
		t.Errorf("the input was changed:\n%s", diff)
	}
}
