// SPDX-License-Identifier: Apache-2.0

package template

import (
	"strconv"
	"strings"
)

// field names one field of a Pod as BASE[NAME]SUB[ITEM], of which only BASE is always there:
//
//	spec.hostname
//	metadata.labels[kubevirt.io]
//	spec.containers[compute].image
//	spec.containers[compute].env[POD_NAME]
//
// It is a value and not a text because rendering a Pod names some hundred fields and reads none of the names.
type field struct{ base, name, sub, item string }

const (
	fieldLabels         = "metadata.labels"
	fieldAnnotations    = "metadata.annotations"
	fieldNodeSelector   = "spec.nodeSelector"
	fieldVolumes        = "spec.volumes"
	fieldContainers     = "spec.containers"
	fieldInitContainers = "spec.initContainers"
	fieldPullSecrets    = "spec.imagePullSecrets"
	fieldResourceClaims = "spec.resourceClaims"
	fieldTolerations    = "spec.tolerations"
)

// String is the path of the field.
func (f field) String() string {
	path := f.base
	if f.name != "" {
		path += "[" + f.name + "]"
	}
	path += f.sub
	if f.item != "" {
		path += "[" + f.item + "]"
	}
	return path
}

// parseField is the inverse of String.
func parseField(path string) field {
	base, rest, keyed := strings.Cut(path, "[")
	if !keyed {
		return field{base: path}
	}
	name, rest, _ := strings.Cut(rest, "]")
	sub, item, _ := strings.Cut(rest, "[")
	return field{base: base, name: name, sub: sub, item: strings.TrimSuffix(item, "]")}
}

// within tells whether a path is that of the outer field or of a part of it.
func within(path, outer string) bool {
	rest, ok := strings.CutPrefix(path, outer)
	return ok && (rest == "" || rest[0] == '.' || rest[0] == '[')
}

// contains tells whether g is f or a part of it.
func (f field) contains(g field) bool {
	switch {
	case f.name == "":
		return within(g.base, f.base)
	case g.base != f.base || g.name != f.name:
		return false
	case f.sub == "":
		return true
	case f.item == "":
		return within(g.sub, f.sub)
	default:
		return g.sub == f.sub && g.item == f.item
	}
}

// elementOf names an element of one of the VMI's lists, such as spec.volumes[2].
func elementOf(list string, i int) string { return list + "[" + strconv.Itoa(i) + "]" }

const (
	vmiVolumes    = "spec.volumes"
	vmiDisks      = "spec.domain.devices.disks"
	vmiInterfaces = "spec.domain.devices.interfaces"
)
