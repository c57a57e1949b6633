// SPDX-License-Identifier: Apache-2.0

package domain

import (
	"errors"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "kubevirt.io/api/core/v1"
	"libvirt.org/go/libvirtxml"
	"sigs.k8s.io/yaml"

	"github.com/virtloom/virtloom/internal/vmirules"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// everyGate are the gates that a guest may need.
func everyGate() []string {
	return []string{
		vmirules.Sidecar, vmirules.Ignition, vmirules.HostDisk, vmirules.HostDevices, vmirules.DownwardMetrics, vmirules.SEV, vmirules.TDX,
		vmirules.VSOCK, vmirules.VirtiofsStorage, vmirules.UtilityVolumes, vmirules.ContainerPaths, vmirules.NetworksWithDRA, vmirules.PersistentReservation,
	}
}

// testFacts is a node with files for every volume of the golden objects.
func testFacts() Facts {
	return Facts{
		Cluster: Cluster{FeatureGates: everyGate()},
		Dir:     "/var/lib/virtloom/guests/5b6c1a2e", Emulation: true, Epoch: 7,
		Bridges: map[string]string{"default": "br0", "storage": "br1"},
		Disks: map[string]DiskSource{
			"root":      {Path: "/srv/shared/root.img", Shared: true},
			"data":      {Path: "/dev/vg/data", Block: true, DirectIO: true, Shared: true},
			"scratch":   {Path: "/var/lib/virtloom/guests/5b6c1a2e/scratch.qcow2", Format: "qcow2"},
			"cloudinit": {Path: "/var/lib/virtloom/guests/5b6c1a2e/noCloud.iso"},
			"image": {
				Path: "/var/lib/virtloom/guests/5b6c1a2e/image.qcow2", Format: "qcow2",
				Backing: &DiskSource{Path: "/var/lib/virtloom/images/a1.img", Format: "raw", ReadOnly: true},
			},
		},
		Kernel: "/var/lib/virtloom/guests/5b6c1a2e/kernel", Initrd: "/var/lib/virtloom/guests/5b6c1a2e/initrd",
	}
}

func readVMI(t testing.TB, file string) *v1.VirtualMachineInstance {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	vmi := &v1.VirtualMachineInstance{}
	if err := yaml.UnmarshalStrict(b, vmi); err != nil {
		t.Fatalf("%s: %v", file, err)
	}
	return vmi
}

func marshal(t testing.TB, d *libvirtxml.Domain) string {
	t.Helper()
	s, err := d.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	return s + "\n"
}

func TestConvertMatchesGoldenDomains(t *testing.T) {
	files, err := filepath.Glob("testdata/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no golden objects: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".yaml"), func(t *testing.T) {
			vmi, f := readVMI(t, file), testFacts()
			if vmi.Spec.Architecture == "arm64" {
				f.Arch = archARM
			}
			if vmi.Spec.Domain.CPU != nil && vmi.Spec.Domain.CPU.Model == v1.CPUModeHostPassthrough {
				f.Emulation = false
			}
			before := vmi.DeepCopy()
			d, err := Convert(vmi, f)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(before, vmi); diff != "" {
				t.Errorf("Convert changed the object:\n%s", diff)
			}
			got := marshal(t, d)
			golden := strings.TrimSuffix(file, ".yaml") + ".xml"
			if *update {
				if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatalf("%v (go test -update writes it)", err)
			}
			if diff := cmp.Diff(string(want), got); diff != "" {
				t.Errorf("domain (-want +got):\n%s", diff)
			}
			again, _ := Convert(vmi, f)
			if marshal(t, again) != got {
				t.Error("a second conversion gives another domain")
			}
		})
	}
}

// errorIs lets a test row name its sentinel.
func wantError(t *testing.T, err error, field string, sentinel error) {
	t.Helper()
	var e *Error
	if !errors.As(err, &e) {
		t.Fatalf("error is %v, want an *Error for %s", err, field)
	}
	if e.Field != field || !errors.Is(err, sentinel) {
		t.Errorf("error is %q with field %q, want field %q and %v", err, e.Field, field, sentinel)
	}
	if e.Object == "" || e.Reason == "" || e.Remedy == "" {
		t.Errorf("object, reason or remedy is empty: %+v", e)
	}
}
