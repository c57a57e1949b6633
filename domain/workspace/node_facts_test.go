// SPDX-License-Identifier: Apache-2.0

package workspace_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/convert"
	"github.com/virtloom/virtloom/domain/internal/domainfixture"
	"github.com/virtloom/virtloom/domain/workspace"
)

// firmwareDir makes a directory with empty files of those names.
func firmwareDir(t *testing.T, names ...string) string {
	t.Helper()
	dir := t.TempDir()
	for _, name := range names {
		domainfixture.Must(t, os.WriteFile(filepath.Join(dir, name), nil, 0o600))
	}
	return dir
}

func TestFirmware_FoundOnNode(t *testing.T) {
	for name, tt := range map[string]struct {
		arch  string
		files []string
		want  convert.Firmware
	}{
		"none": {"x86_64", nil, convert.Firmware{}},
		"KubeVirt's launcher": {"x86_64", []string{"OVMF_CODE.secboot.fd", "OVMF_VARS.secboot.fd", "OVMF_VARS.fd", "OVMF_CODE.cc.fd",
			"OVMF.amdsev.fd", "OVMF.inteltdx.fd", "OVMF.inteltdx.secboot.fd"}, convert.Firmware{
			SecureBoot: convert.FirmwareImage{Code: "OVMF_CODE.secboot.fd", Vars: "OVMF_VARS.secboot.fd"},
			Plain:      convert.FirmwareImage{Code: "OVMF_CODE.secboot.fd", Vars: "OVMF_VARS.fd"},
			SEV:        convert.FirmwareImage{Code: "OVMF_CODE.cc.fd", Vars: "OVMF_VARS.fd"},
			SNP:        convert.FirmwareImage{Code: "OVMF.amdsev.fd"}, TDX: convert.FirmwareImage{Code: "OVMF.inteltdx.fd"},
			TDXSecureBoot: convert.FirmwareImage{Code: "OVMF.inteltdx.secboot.fd"},
		}},
		"Debian": {"x86_64", []string{"OVMF_CODE_4M.fd", "OVMF_VARS_4M.fd", "OVMF_CODE_4M.ms.fd", "OVMF_VARS_4M.ms.fd", "OVMF_CODE_4M.secboot.fd"}, convert.Firmware{
			SecureBoot: convert.FirmwareImage{Code: "OVMF_CODE_4M.secboot.fd", Vars: "OVMF_VARS_4M.ms.fd"},
			Plain:      convert.FirmwareImage{Code: "OVMF_CODE_4M.fd", Vars: "OVMF_VARS_4M.fd"},
		}},
		"no variables":                   {"x86_64", []string{"OVMF_CODE.fd"}, convert.Firmware{}},
		"of another architecture":        {"aarch64", []string{"OVMF_CODE.fd", "OVMF_VARS.fd"}, convert.Firmware{}},
		"arm64":                          {"aarch64", []string{"AAVMF_CODE.fd", "AAVMF_VARS.fd"}, convert.Firmware{Plain: convert.FirmwareImage{Code: "AAVMF_CODE.fd", Vars: "AAVMF_VARS.fd"}}},
		"an architecture without images": {"s390x", []string{"OVMF_CODE.fd", "OVMF_VARS.fd"}, convert.Firmware{}},
	} {
		t.Run(name, func(t *testing.T) {
			dir := firmwareDir(t, tt.files...)
			w := &workspace.Workspace{Root: t.TempDir(), FirmwareDirs: []string{firmwareDir(t), dir}}
			f, err := w.Prepare(t.Context(), &v1.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{UID: "uid"}}, domain.Host{Arch: tt.arch, KVM: true})
			domainfixture.Must(t, err)
			for _, image := range []*convert.FirmwareImage{&tt.want.SecureBoot, &tt.want.Plain, &tt.want.SEV, &tt.want.SNP, &tt.want.TDX, &tt.want.TDXSecureBoot} {
				for _, path := range []*string{&image.Code, &image.Vars} {
					if *path != "" {
						*path = filepath.Join(dir, *path)
					}
				}
			}
			if diff := cmp.Diff(tt.want, f.Firmware); diff != "" {
				t.Errorf("firmware (-want +got):\n%s", diff)
			}
		})
	}
}

func TestWorkspace_FactsOfNodeAndCluster(t *testing.T) {
	vmi := &v1.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "guest", UID: "uid"}}
	host := domain.Host{Arch: "x86_64", KVM: true, Cells: []domain.Cell{{ID: 1, MemoryKiB: 4, CPUs: []domain.HostCPU{{ID: 3}}}}}
	kv := &v1.KubeVirt{}
	kv.Spec.Configuration.SMBIOSConfig = &v1.SMBiosConfiguration{Product: "cloud"}
	kv.Spec.Configuration.VirtualMachineOptions = &v1.VirtualMachineOptions{DisableSerialConsoleLog: &v1.DisableSerialConsoleLog{}}
	w := &workspace.Workspace{Root: t.TempDir(), Settings: func(context.Context) (*v1.KubeVirt, error) { return kv, nil },
		DedicatedCPUs: func(context.Context, *v1.VirtualMachineInstance) ([]uint, error) { return []uint{4, 5}, nil }}

	f, err := w.Prepare(t.Context(), vmi, host)
	domainfixture.Must(t, err)
	if diff := cmp.Diff(host.Cells, f.Cells); diff != "" || f.SMBIOS == nil || f.SMBIOS.Product != "cloud" || !f.Cluster.NoSerialConsoleLog || f.CPUs != nil {
		t.Errorf("facts: %+v; cells (-want +got):\n%s", f, diff)
	}
	vmi.Spec.Domain.CPU = &v1.CPU{DedicatedCPUPlacement: true}
	if f, err = w.Prepare(t.Context(), vmi, host); err != nil || !cmp.Equal(f.CPUs, []uint{4, 5}) {
		t.Errorf("dedicated CPUs: %v, %v", f.CPUs, err)
	}
	w.DedicatedCPUs = func(context.Context, *v1.VirtualMachineInstance) ([]uint, error) { return nil, errors.New("no cpuset") }
	_, err = w.Prepare(t.Context(), vmi, host)
	domainfixture.Says(t, err, "ns/guest", "no cpuset")
	w.Settings = func(context.Context) (*v1.KubeVirt, error) { return nil, errors.New("no way") }
	_, err = w.Prepare(t.Context(), vmi, host)
	domainfixture.Says(t, err, "no way")
}
