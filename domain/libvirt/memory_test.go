// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package libvirt

import (
	"testing"

	"libvirt.org/go/libvirtxml"
)

// A guest of 128 MiB, with devices in between.
func TestMemory_DeviceContentCounts(t *testing.T) {
	const device = `<memory model="virtio-mem"><target><size unit="KiB">262144</size><block unit="KiB">2048</block>` +
		`<requested unit="KiB">131072</requested>`
	for name, tt := range map[string]struct {
		total, current, devices string
		want                    uint
	}{
		"no device":                      {"131072", "131072", "", 131072},
		"no device, an inflated balloon": {"131072", "65536", "", 65536},
		"counted":                        {"393216", "262144", device + `<current unit="KiB">131072</current></target></memory>`, 262144},
		"not counted":                    {"393216", "131072", device + `<current unit="KiB">131072</current></target></memory>`, 262144},
		"one of two is not": {
			"655360", "262144", device + `<current unit="KiB">131072</current></target></memory>` + device + `<current unit="KiB">131072</current></target></memory>`, 393216,
		},
		"in part":               {"393216", "133120", device + `<current unit="MiB">64</current></target></memory>`, 196608},
		"empty":                 {"393216", "131072", device + `<current unit="KiB">0</current></target></memory>`, 131072},
		"it does not run":       {"393216", "131072", device + `</target></memory>`, 131072},
		"a DIMM beside it":      {"524288", "262144", `<memory model="dimm"><target><size unit="KiB">131072</size></target></memory>` + device + `<current unit="KiB">131072</current></target></memory>`, 393216},
		"more than it can hold": {"393216", "131072", device + `<current unit="KiB">999999</current></target></memory>`, 393216},
		"less than the devices": {"1024", "1024", device + `<current unit="KiB">0</current></target></memory>`, 1024},
	} {
		t.Run(name, func(t *testing.T) {
			text := `<domain type="qemu"><memory unit="KiB">` + tt.total + `</memory><currentMemory unit="KiB">` + tt.current +
				`</currentMemory><devices>` + tt.devices + `</devices></domain>`
			var d libvirtxml.Domain
			if err := d.Unmarshal(text); err != nil {
				t.Fatal(err)
			}
			if err := countHeld(&d, text); err != nil || d.CurrentMemory.Value != tt.want || d.CurrentMemory.Unit != "KiB" {
				t.Errorf("%+v, %v, want %d KiB", d.CurrentMemory, err, tt.want)
			}
		})
	}
}

func TestMemory_DomainWithoutMemory(t *testing.T) {
	var d libvirtxml.Domain
	if err := countHeld(&d, `<domain><devices><memory><target><current unit="KiB">1</current></target></memory></devices></domain>`); err != nil {
		t.Error(err)
	}
}
