// SPDX-License-Identifier: Apache-2.0

package workspace_test

import (
	"os"
	"path/filepath"
	"testing"

	"k8s.io/apimachinery/pkg/api/resource"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/domain/convert"
	"github.com/virtloom/virtloom/domain/internal/domainfixture"
)

// tableGuest has a secret volume that its firmware reads tables from.
func tableGuest(slic, msdm string) *v1.VirtualMachineInstance {
	vmi := guest("6e2a3a4e-0000-4000-8000-000000000001", volumeOf(v1.VolumeSource{Secret: &v1.SecretVolumeSource{SecretName: "s"}}))
	vmi.Spec.Domain.Firmware = &v1.Firmware{ACPI: &v1.ACPI{SlicNameRef: slic, MsdmNameRef: msdm}}
	return vmi
}

func TestACPITables_FromSecret(t *testing.T) {
	w := newWorkspace(t)
	w.Objects = objects{"secret/ns/s": {"slic.bin": "S", "msdm.bin": "M", "other": "x"}}
	f := prepare(t, w, tableGuest("conf", "conf"))
	dir := f.SecretDirs["conf"]
	for name, want := range map[string]string{"slic.bin": "S", "msdm.bin": "M"} {
		if b, err := os.ReadFile(filepath.Join(dir, name)); err != nil || string(b) != want {
			t.Errorf("%s holds %q, %v", name, b, err)
		}
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 2 {
		t.Errorf("the directory has %v, %v", left, err)
	}
	w.Objects = objects{}
	if again := prepare(t, w, tableGuest("conf", "conf")).SecretDirs["conf"]; again != dir {
		t.Errorf("then %q", again)
	}
	vmi := tableGuest("conf", "")
	vmi.Spec.Domain.Memory = &v1.Memory{Guest: quantity("64Mi")}
	f.Dir = "/run/guest" // sockets need a short path
	d, err := convert.Convert(vmi, f)
	if err != nil {
		t.Fatal(err)
	}
	if got := d.OS.ACPI.Tables[0].Path; got != filepath.Join(dir, "slic.bin") {
		t.Errorf("the domain has %s", got)
	}
}

func TestACPITables_Missing(t *testing.T) {
	w := newWorkspace(t)
	w.Objects = objects{"secret/ns/s": {"slic.bin": "S"}}
	_, err := w.Prepare(t.Context(), tableGuest("conf", "conf"), kvmHost)
	domainfixture.Says(t, err, "ns/guest", "spec.volumes[0].secret.secretName", "msdm.bin", "add the table")
	if f := prepare(t, w, tableGuest("", "other")); len(f.SecretDirs) != 0 {
		t.Errorf("directories %v", f.SecretDirs)
	}
}

func quantity(s string) *resource.Quantity {
	q := resource.MustParse(s)
	return &q
}

func TestIgnition_DataIsFile(t *testing.T) {
	w, vmi := newWorkspace(t), guest("uid-1")
	vmi.Annotations = map[string]string{v1.IgnitionAnnotation: `{"ignition": {"version": "3.0.0"}}`}
	f := prepare(t, w, vmi)
	if b, err := os.ReadFile(f.Ignition); err != nil || string(b) != vmi.Annotations[v1.IgnitionAnnotation] {
		t.Errorf("the file holds %q, %v", b, err)
	}
	vmi.Annotations[v1.IgnitionAnnotation] = "changed: ignition"
	if b, err := os.ReadFile(prepare(t, w, vmi).Ignition); err != nil || string(b) == "changed: ignition" {
		t.Errorf("the guest was started with other data than %q, %v", b, err)
	}
	if f := prepare(t, w, guest("uid-2")); f.Ignition != "" {
		t.Errorf("file %s without data", f.Ignition)
	}
}
