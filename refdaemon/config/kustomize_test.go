// SPDX-License-Identifier: Apache-2.0

package config

import (
	"strings"
	"testing"
	"testing/fstest"
)

func TestBuild_Errors(t *testing.T) {
	const begin = "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\n"
	for name, tt := range map[string]struct{ folder, want string }{
		"another feature":   {"resources: [a.yaml]\nnamePrefix: my-\n", `unknown field "namePrefix"`},
		"feature of target": {"patches: [{path: p.yaml, target: {labelSelector: a=b}}]\n", `unknown field "labelSelector"`},
		"another order":     {"resources: [a.yaml]\nsortOptions: {order: legacy}\n", `sortOptions.order: "legacy" is not supported`},
		"absent resource":   {"resources: [b.yaml]\n", "default/b.yaml"},
		"absent folder":     {"components: [../b]\n", "b/kustomization.yaml"},
		"absent patch":      {"resources: [a.yaml]\npatches: [{path: b.yaml, target: {kind: ConfigMap, name: a}}]\n", "default/b.yaml"},
		"no target":         {"resources: [a.yaml]\npatches: [{path: p.yaml, target: {kind: ConfigMap, name: b}}]\n", "default/p.yaml: target {Group: Kind:ConfigMap Name:b}"},
		"no object":         {"resources: [p.yaml]\n", "default/p.yaml"},
		"not patchable":     {"resources: [a.yaml]\npatches: [{path: p.yaml, target: {kind: ConfigMap, name: a}}]\n", "default/p.yaml"},
		"no patch":          {"resources: [a.yaml]\npatches: [{path: a.yaml, target: {kind: ConfigMap, name: a}}]\n", "default/a.yaml"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := build(fstest.MapFS{
				"default/kustomization.yaml": {Data: []byte(begin + tt.folder)},
				"default/a.yaml":             {Data: []byte("{apiVersion: v1, kind: ConfigMap, metadata: {name: a}}\n")},
				"default/p.yaml":             {Data: []byte("[{op: add, path: /spec/a, value: 1}]\n")},
			}, "default", nil)
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error %v, want %q", err, tt.want)
			}
		})
	}
}
