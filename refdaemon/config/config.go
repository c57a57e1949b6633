// SPDX-License-Identifier: Apache-2.0

// Package config holds all that a cluster is given to run virtloom's daemons, for kustomize, as one flat file and for
// programs:
//
//	crd           KubeVirt's objects, for clusters without KubeVirt
//	rbac          namespaces, accounts, roles and the policies that narrow them
//	controller    the Deployment of "refdaemon controller", its disruption budget, priority and network policies
//	node          the DaemonSet of "refdaemon node", its priority and network policies
//	webhook       a component: the controller fills in and checks guests, and judges evictions of their Pods
//	default       all of the above; virtloom.yaml is that as one file
//	certificates  a component: cert-manager makes the certificate for that instead of the controller
//	complete      the default with that
//
// README.md says how to install, and what a cluster has to have.
package config

import (
	"bytes"
	_ "embed" // for the manifests
	"errors"
	"fmt"
	"io"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/yaml"
)

//go:embed virtloom.yaml
var flat []byte

// longestPrefix is how far a decoder looks for what tells YAML from JSON.
const longestPrefix = 4096

// Manifests returns all objects of virtloom.yaml in an order in which they can be created. Every call decodes them anew,
// so the caller may change what it gets.
func Manifests() ([]*unstructured.Unstructured, error) {
	objects, err := Decode(bytes.NewReader(flat))
	if err != nil {
		return nil, fmt.Errorf("manifests in virtloom.yaml: %w", err)
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
