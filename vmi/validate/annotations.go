// SPDX-License-Identifier: Apache-2.0

package validate

import (
	"encoding/json"
	"strings"

	v1 "kubevirt.io/api/core/v1"
)

var annotationRules = []Rule{
	{"hook-sidecars", checkHookSidecars, false},
	{"log-filters", checkLogFilters, true},
	{"mesh", checkMesh, true},
}

const istioInject = "sidecar.istio.io/inject"

func checkHookSidecars(k *checker) {
	text, there := k.vmi.Annotations[hookSidecars]
	if !there {
		return
	}
	at := atAnnotations.key(hookSidecars)
	var list []map[string]any
	if err := json.Unmarshal([]byte(text), &list); err != nil {
		k.invalid(at, text, "must be a JSON list of objects: "+err.Error(), `use a list such as [{"image": "registry.example/hook:1"}]`)
	}
}

// checkLogFilters rejects filters that the launcher would parse as another argument.
func checkLogFilters(k *checker) {
	if filters := k.vmi.Annotations[v1.CustomLibvirtLogFiltersAnnotation]; strings.HasPrefix(filters, "--") {
		k.invalid(atAnnotations.key(v1.CustomLibvirtLogFiltersAnnotation), filters, "must not begin like an argument of the launcher",
			"use filters of libvirt, such as 3:remote 1:*")
	}
}

func checkMesh(k *checker) {
	if inject, there := k.vmi.Annotations[istioInject]; there {
		k.text(atAnnotations.key(istioInject), inject, LabelValue, "use true or false: the value becomes a label")
	}
}
