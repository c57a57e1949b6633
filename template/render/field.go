// SPDX-License-Identifier: Apache-2.0

package render

import "strings"

// field identifies one field of a Pod as BASE[NAME]SUB[ITEM]; only BASE is mandatory:
//
//	spec.hostname
//	metadata.labels[kubevirt.io]
//	spec.containers[compute].image
//	spec.containers[compute].env[POD_NAME]
//
// It is a struct and not a string because a rendering identifies some hundred fields and prints none of them.
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

// String returns the path of the field.
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

// within reports whether a path is that of the outer field or of a part of it.
func within(path, outer string) bool {
	rest, ok := strings.CutPrefix(path, outer)
	return ok && (rest == "" || rest[0] == '.' || rest[0] == '[')
}

// contains reports whether g is f or a part of it.
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

// atomic returns the field that owns a part. The parts of a container are fields of their own, since several stages
// contribute to one; any other element of a list or map has one owner.
func (f field) atomic() field {
	if f.name != "" && f.base != fieldContainers && f.base != fieldInitContainers {
		f.sub, f.item = "", ""
	}
	return f.atomicItem()
}

// atomicItem returns the element of a container's list that owns a part.
func (f field) atomicItem() field {
	f.item, _, _ = strings.Cut(f.item, "].")
	return f
}

// isContainer reports whether the field is a container as a whole.
func (f field) isContainer() bool {
	return f.sub == "" && (f.base == fieldContainers || f.base == fieldInitContainers)
}

// isText reports whether the field is an element of a map of strings, which has no parts.
func (f field) isText() bool {
	return f.name != "" && (f.base == fieldLabels || f.base == fieldAnnotations || f.base == fieldNodeSelector)
}

// isCanonical reports whether elements of lists and maps are named in brackets.
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

// isElement reports whether the field is an element that is named after a volume, device or port of the VMI.
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

// dotted returns the path with dots instead of brackets.
func (f field) dotted() string { return dots.Replace(f.String()) }

// begins reports whether a dotted path is that of the field or of a field that contains it. Names may contain dots, which
// separate nothing.
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
