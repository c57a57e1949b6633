// SPDX-License-Identifier: Apache-2.0

// Package webhook holds the manifests that make an API server call "refdaemon controller --webhook-address" to default and
// validate VMIs and VirtualMachines, where KubeVirt's webhooks do not: a Service, a MutatingWebhookConfiguration and a
// ValidatingWebhookConfiguration, for "kubectl apply -f" and for programs. Defaults and rules are those of packages vmi/admit and vm/admit.
// Evictions of launcher Pods are judged as well, by evacuation.Evict.
//
// Requests fail while the webhook is unavailable (failurePolicy Fail): an unchecked VMI could claim to be on a node already.
// Changes of VMIs by virtloom, KubeVirt and Kubernetes itself are exempt, so that running VMIs do not depend on the webhook.
package webhook

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"io"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/yaml"

	_ "embed" // for the manifests
)

//go:embed webhook.yaml
var manifests []byte

// longestPrefix is the number of bytes in which a decoder distinguishes YAML from JSON.
const longestPrefix = 4096

// Endpoint is how the API server reaches the controller.
type Endpoint struct {
	// URL is its address, without a path; empty for the Service of the manifests, which is left out otherwise.
	URL string
	// CABundle is the authority of its certificate, as PEM; empty for the API server's system roots.
	CABundle []byte
}

// Manifests returns all objects in an order in which they can be created. Every call decodes them anew, so the caller may
// modify them.
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

// apply sets the endpoint of the webhooks of a configuration.
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
