// SPDX-License-Identifier: Apache-2.0

// Package config holds all manifests of virtloom's daemons, for kustomize and for programs; "refdaemon manifests" prints them
// as one file:
//
//	crd           definitions of KubeVirt's kinds, for clusters without KubeVirt
//	rbac          namespaces, accounts, roles and the policies that restrict them
//	controller    the Deployment of "refdaemon controller", its disruption budget, priority and network policies
//	node          the DaemonSet of "refdaemon node", its priority and network policies
//	webhook       a component: the controller defaults and validates VMIs, and judges evictions of their Pods
//	default       all of the above
//	certificates  a component: cert-manager issues the webhook certificate instead of the controller
//	complete      the default with certificates
//
// README.md lists the requirements and the steps of an installation.
package config

import (
	"embed"
	"errors"
	"fmt"
	"io"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/yaml"
)

//go:embed default/*.yaml crd/*.yaml rbac/*.yaml controller/*.yaml node/*.yaml webhook/*.yaml
var files embed.FS

// longestPrefix is the number of bytes in which a decoder distinguishes YAML from JSON.
const longestPrefix = 4096

// Manifests returns all objects of folder default, as kustomize builds them, in an order in which they can be created. Every
// call decodes them anew, so the caller may modify them.
func Manifests() ([]*unstructured.Unstructured, error) {
	objects, err := build(files, "default", nil)
	if err != nil {
		return nil, fmt.Errorf("manifests: %w", err)
	}
	return objects, nil
}

// Decode reads objects, each a document of YAML or JSON, until the end.
func Decode(r io.Reader) ([]*unstructured.Unstructured, error) {
	var all []*unstructured.Unstructured
	for decoder := yaml.NewYAMLOrJSONDecoder(r, longestPrefix); ; {
		o := &unstructured.Unstructured{}
		switch err := decoder.Decode(o); {
		case errors.Is(err, io.EOF):
			return all, nil
		case err != nil:
			return nil, err
		case len(o.Object) > 0:
			all = append(all, o)
		}
	}
}
