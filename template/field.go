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

// atomic is the field that a part of it stands for. The parts of a container are fields of their own, as many stages
// contribute to one; any other element of a list or map has one owner.
func (f field) atomic() field {
	if f.name != "" && f.base != fieldContainers && f.base != fieldInitContainers {
		f.sub, f.item = "", ""
	}
	return f.atomicItem()
}

// atomicItem is the element of a container's list that a part of it stands for.
func (f field) atomicItem() field {
	f.item, _, _ = strings.Cut(f.item, "].")
	return f
}

// isContainer tells whether the field is a container as such.
func (f field) isContainer() bool {
	return f.sub == "" && (f.base == fieldContainers || f.base == fieldInitContainers)
}

// isText tells whether the field is an element of a map of texts, which has no parts.
func (f field) isText() bool {
	return f.name != "" && (f.base == fieldLabels || f.base == fieldAnnotations || f.base == fieldNodeSelector)
}

// isCanonical tells whether elements of lists and maps are named in brackets.
func (f field) isCanonical() bool {
	for _, list := range keyedBases {
		if f.base != list && within(f.base, list) {
			return false
		}
	}
	for _, list := range keyedParts {
		if f.sub == "" {
			break
		}
		if f.sub != list && within(f.sub, list) {
			return false
		}
	}
	return f.base != "" && f.base[0] != '.' && !strings.HasSuffix(f.base, ".") && !strings.HasSuffix(f.sub, ".")
}

// keyedParts are the lists and maps of a container whose elements are fields of their own.
var keyedParts = []string{
	".args", ".env", ".ports", ".volumeMounts", ".volumeDevices", ".resources.requests", ".resources.limits", ".resources.claims",
}

// isElement tells whether the field is an element that has its name from a volume, device or port of the guest.
func (f field) isElement() bool {
	switch f.base {
	case fieldVolumes, fieldResourceClaims:
		return f.name != ""
	case fieldContainers, fieldInitContainers:
		return f.isContainer() || f.sub == ".volumeMounts" || f.sub == ".volumeDevices" || f.sub == ".ports"
	default:
		return false
	}
}

// dotted is the path with dots in the place of brackets.
func (f field) dotted() string { return dots.Replace(f.String()) }

// begins tells whether a dotted path is that of the field or of something it is a part of. Names may have dots of their
// own, which separate nothing.
func (f field) begins(asked string) bool {
	full, n := f.dotted(), len(asked)
	if asked == "" || asked == full {
		return true
	}
	name := len(f.base) + 1
	item := len(f.base) + len(f.sub) + 1
	if f.name != "" {
		item += len(f.name) + 1
	}
	inside := func(start int, key string) bool { return key != "" && n >= start && n < start+len(key) }
	return strings.HasPrefix(full, asked+".") && !inside(name, f.name) && !inside(item, f.item)
}

// elementOf names an element of one of the VMI's lists, such as spec.volumes[2].
func elementOf(list string, i int) string { return list + "[" + strconv.Itoa(i) + "]" }

const (
	vmiVolumes    = "spec.volumes"
	vmiDisks      = "spec.domain.devices.disks"
	vmiInterfaces = "spec.domain.devices.interfaces"
)
