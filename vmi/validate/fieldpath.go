// SPDX-License-Identifier: Apache-2.0

package validate

import (
	"strconv"
	"strings"
)

// fieldPath is the path of a field, like field.Path of the API machinery. Nothing keeps one, so that the paths of valid
// fields stay on the stack: faults have texts.
type fieldPath struct {
	parent *fieldPath
	name   string // of a child, or a key; empty for an element of a list
	keyed  bool
	number int
}

func (p *fieldPath) child(name string) *fieldPath { return &fieldPath{parent: p, name: name} }

func (p *fieldPath) key(key string) *fieldPath { return &fieldPath{parent: p, name: key, keyed: true} }

func (p *fieldPath) index(i int) *fieldPath { return &fieldPath{parent: p, number: i} }

// String returns the path as the API server writes it, such as spec.volumes[2].name.
func (p *fieldPath) String() string {
	var b strings.Builder
	p.write(&b)
	return b.String()
}

func (p *fieldPath) write(b *strings.Builder) {
	if p.parent == nil {
		b.WriteString(p.name)
		return
	}
	p.parent.write(b)
	switch {
	case p.keyed:
		b.WriteString("[" + p.name + "]")
	case p.name == "":
		b.WriteString("[" + strconv.Itoa(p.number) + "]")
	default:
		b.WriteString("." + p.name)
	}
}

// Paths of fields.
var (
	atSpec        = &fieldPath{name: "spec"}
	atDomain      = &fieldPath{name: "spec.domain"}
	atCPU         = &fieldPath{name: "spec.domain.cpu"}
	atMemory      = &fieldPath{name: "spec.domain.memory"}
	atResources   = &fieldPath{name: "spec.domain.resources"}
	atFirmware    = &fieldPath{name: "spec.domain.firmware"}
	atFeatures    = &fieldPath{name: "spec.domain.features"}
	atDevices     = &fieldPath{name: "spec.domain.devices"}
	atDisks       = &fieldPath{name: "spec.domain.devices.disks"}
	atInterfaces  = &fieldPath{name: "spec.domain.devices.interfaces"}
	atVolumes     = &fieldPath{name: "spec.volumes"}
	atNetworks    = &fieldPath{name: "spec.networks"}
	atAnnotations = &fieldPath{name: "metadata.annotations"}
)
