// SPDX-License-Identifier: Apache-2.0

package workspace

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/convert"
)

// downwardAPI makes a disk with fields of the VMI: labels and annotations are those of its Pod as
// well, name and uid are the VMI's. Modes and owners of files are not kept: the disk is read as a
// whole.
func (w generated) downwardAPI(_ context.Context, v volume) (convert.DiskSource, error) {
	const field = "downwardAPI"
	return v.seeded(field, func() (string, []seed, error) {
		var files []seed
		for i := range v.DownwardAPI.Fields {
			item := &v.DownwardAPI.Fields[i]
			at := fmt.Sprintf("%s.fields[%d]", field, i)
			if p := item.Path; p == "" || path.IsAbs(p) || path.Clean(p) != p || p == "." || slices.Contains(strings.Split(p, "/"), "..") {
				return "", nil, v.fault(at+".path", fmt.Sprintf("Invalid value: %q is not a path within the disk", item.Path), "use a relative, clean path", domain.ErrInvalid)
			}
			text, err := v.downwardField(at, item)
			if err != nil {
				return "", nil, err
			}
			files = append(files, seed{item.Path, []byte(text)})
		}
		return cmp.Or(v.DownwardAPI.VolumeLabel, configLabel), files, nil
	})
}

// subscripted matches fields with a key: metadata.labels['app'].
var subscripted = regexp.MustCompile(`^(metadata\.(?:labels|annotations))\['([^']+)'\]$`)

// downwardField returns the content of one file.
func (v volume) downwardField(at string, item *corev1.DownwardAPIVolumeFile) (string, error) {
	if item.FieldRef == nil {
		return "", v.fault(at+".resourceFieldRef", "Pod resources are not supported on this node",
			"use fieldRef, or store the value in a ConfigMap", domain.ErrUnsupported)
	}
	name := item.FieldRef.FieldPath
	all := map[string]map[string]string{"metadata.labels": v.vmi.Labels, "metadata.annotations": v.vmi.Annotations}
	if m, found := all[name]; found {
		return formatMap(m), nil
	}
	if m := subscripted.FindStringSubmatch(name); m != nil {
		return all[m[1]][m[2]], nil
	}
	switch name {
	case "metadata.name":
		return v.vmi.Name, nil
	case "metadata.namespace":
		return v.vmi.Namespace, nil
	case "metadata.uid":
		return string(v.vmi.UID), nil
	}
	return "", v.fault(at+".fieldRef.fieldPath", fmt.Sprintf("Unsupported value: %q", name),
		"use metadata.name, namespace, uid, labels, annotations, or one of the last two with a key", domain.ErrInvalid)
}

// formatMap formats labels and annotations as a kubelet does: one line each, sorted, values quoted.
func formatMap(m map[string]string) string {
	var lines []string
	for _, key := range slices.Sorted(maps.Keys(m)) {
		lines = append(lines, fmt.Sprintf("%s=%q", key, m[key]))
	}
	return strings.Join(lines, "\n")
}
