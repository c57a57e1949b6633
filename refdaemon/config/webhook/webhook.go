// SPDX-License-Identifier: Apache-2.0

// Package webhook holds the manifests by which an API server has "refdaemon controller --webhook-address" fill in and check
// guests, where KubeVirt's webhooks do not: a Service, a MutatingWebhookConfiguration and a ValidatingWebhookConfiguration,
// for "kubectl apply -f" and for programs. What is filled in and checked is package vmi/admit. Evictions of guests' Pods are
// judged as well, by migration.Evict.
//
// Requests fail while nobody answers (failurePolicy Fail): a guest that nobody has looked at could claim to be on a node
// already. Changes of guests by virtloom, KubeVirt and Kubernetes itself are never asked about, so that guests run on without.
package webhook

import (
	"bytes"
	_ "embed" // for the manifests
	"encoding/base64"
	"errors"
	"fmt"
	"io"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/yaml"
)

//go:embed webhook.yaml
var manifests []byte

// longestPrefix is how far a decoder looks for what tells YAML from JSON.
const longestPrefix = 4096

// Endpoint is how the API server reaches the controller.
type Endpoint struct {
	// URL is where it listens, without a path; empty for the Service of the manifests, which is left out otherwise.
	URL string
	// CABundle is the authority of its certificate, as PEM; empty for those that the API server trusts anyway.
	CABundle []byte
}

// Manifests returns all objects in an order in which they can be created. Every call decodes them anew, so the caller may
// change what it gets.
func Manifests(e Endpoint) ([]*unstructured.Unstructured, error) {
	var all []*unstructured.Unstructured
	for decoder := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(manifests), longestPrefix); ; {
		o := &unstructured.Unstructured{}
		if err := decoder.Decode(o); errors.Is(err, io.EOF) {
			return all, nil
		} else if err != nil {
			return nil, fmt.Errorf("manifests in webhook.yaml: %w", err)
		}
		if o.GetKind() == "Service" && e.URL != "" {
			continue
		}
		if err := e.apply(o); err != nil {
			return nil, fmt.Errorf("%s %s: %w", o.GetKind(), o.GetName(), err)
		}
		all = append(all, o)
	}
}

// apply has the webhooks of a configuration be asked at the endpoint.
func (e Endpoint) apply(o *unstructured.Unstructured) error {
	hooks, found, err := unstructured.NestedSlice(o.Object, "webhooks")
	if err != nil || !found {
		return err
	}
	for _, hook := range hooks {
		client, _, err := unstructured.NestedMap(hook.(map[string]any), "clientConfig")
		if err != nil {
			return err
		}
		if e.URL != "" {
			path, _, err := unstructured.NestedString(client, "service", "path")
			if err != nil {
				return err
			}
			client = map[string]any{"url": e.URL + path}
		}
		if len(e.CABundle) > 0 {
			client["caBundle"] = base64.StdEncoding.EncodeToString(e.CABundle)
		}
		hook.(map[string]any)["clientConfig"] = client
	}
	return unstructured.SetNestedSlice(o.Object, hooks, "webhooks")
}
