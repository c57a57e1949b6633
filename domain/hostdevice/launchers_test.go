// SPDX-License-Identifier: Apache-2.0

package hostdevice_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/convert"
	"github.com/virtloom/virtloom/domain/hostdevice"
)

// wants is a VMI that names resources; those of a claim are written claim:NAME.
func wants(devices, gpus []string) *v1.VirtualMachineInstance {
	vmi := &v1.VirtualMachineInstance{}
	vmi.Namespace, vmi.Name = "default", "guest"
	d := &vmi.Spec.Domain.Devices
	for _, r := range devices {
		d.HostDevices = append(d.HostDevices, v1.HostDevice{DeviceName: r})
	}
	for _, r := range gpus {
		d.GPUs = append(d.GPUs, v1.GPU{DeviceName: r})
	}
	return vmi
}

func TestLaunchers_Devices(t *testing.T) {
	s := newTree(t)
	s.pci("0000:65:00.0", "10de:2204", "vfio-pci", 12, 1)
	s.mediated("0000:65:00.0", uuid1, "kind", "kind", 20)
	for name, tt := range map[string]struct {
		vmi  *v1.VirtualMachineInstance
		env  map[string]string
		want map[string][]convert.HostDevice
		err  string
	}{
		"none": {vmi: wants(nil, nil), env: map[string]string{"PCI_RESOURCE_NVIDIA_COM_GA102": "0000:65:00.0"}},
		"each kind": {
			vmi: wants([]string{"a.example/stick", "a.example/stick", "nvidia.com/GA102"}, []string{"nvidia.com/grid-a"}),
			env: map[string]string{
				"PCI_RESOURCE_NVIDIA_COM_GA102": "0000:65:00.0,0000:66:00.0", "MDEV_PCI_RESOURCE_NVIDIA_COM_GRID-A": strings.ToUpper(uuid1) + ",",
				"USB_RESOURCE_A_EXAMPLE_STICK": "1:2,3:4", "PCI_RESOURCE_OF_ANOTHER": "0000:99:00.0", "PATH": "/bin",
			},
			want: map[string][]convert.HostDevice{
				"nvidia.com/GA102":  {{PCI: "0000:65:00.0", Cell: new(uint(1))}, {PCI: "0000:66:00.0"}},
				"nvidia.com/grid-a": {{MDev: uuid1, Cell: new(uint(1))}},
				"a.example/stick":   {{USB: "1:2"}, {USB: "3:4"}},
			},
		},
		"nothing allocated": {vmi: wants([]string{"nvidia.com/GA102"}, nil), want: map[string][]convert.HostDevice{}},
		"an empty list":     {vmi: wants([]string{"nvidia.com/GA102"}, nil), env: map[string]string{"PCI_RESOURCE_NVIDIA_COM_GA102": ""}, want: map[string][]convert.HostDevice{"nvidia.com/GA102": nil}},
		"no address, which is no path": {
			vmi: wants([]string{"nvidia.com/GA102"}, nil), env: map[string]string{"PCI_RESOURCE_NVIDIA_COM_GA102": "../0000:65:00.0,,x"},
			want: map[string][]convert.HostDevice{"nvidia.com/GA102": {{PCI: "../0000:65:00.0"}, {}, {PCI: "x"}}}, // rejected by convert
		},
		"one variable of two resources": {
			vmi: wants([]string{"a.b/c", "a/b.c"}, nil), env: map[string]string{"PCI_RESOURCE_A_B_C": "0000:65:00.0"}, err: "resources a.b/c and a/b.c have one variable",
		},
		"too many": {
			vmi: wants([]string{"nvidia.com/GA102"}, nil), env: map[string]string{"PCI_RESOURCE_NVIDIA_COM_GA102": strings.Repeat("0000:65:00.0,", 5000)}, err: "too many",
		},
	} {
		t.Run(name, func(t *testing.T) {
			l := hostdevice.Launchers{Host: s.host(), Environment: func(*v1.VirtualMachineInstance) (map[string]string, error) { return tt.env, nil }}
			got, err := l.Devices(tt.vmi)
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if tt.err == "" && err != nil || tt.err != "" && (!errors.Is(err, domain.ErrInvalid) || !strings.Contains(err.Error(), tt.err)) {
				t.Errorf("error %v, want %q", err, tt.err)
			}
		})
	}
}

func TestLaunchers_NotReady(t *testing.T) {
	asked := 0
	l := hostdevice.Launchers{Environment: func(*v1.VirtualMachineInstance) (map[string]string, error) {
		asked++
		return nil, domain.ErrNotReady
	}}
	claimed := wants([]string{""}, []string{"claimed"})
	claimed.Spec.Domain.Devices.GPUs[0].ClaimRequest = &v1.ClaimRequest{}
	if got, err := l.Devices(claimed); err != nil || len(got) != 0 || asked != 0 {
		t.Errorf("a device of a claim: %v, %v, asked %d times", got, err, asked)
	}
	if got, err := l.Devices(wants([]string{"nvidia.com/GA102"}, nil)); !errors.Is(err, domain.ErrNotReady) || got != nil {
		t.Errorf("%v, %v", got, err)
	}
}
