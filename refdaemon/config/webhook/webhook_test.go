// SPDX-License-Identifier: Apache-2.0

package webhook_test

import (
	"strings"
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/virtloom/virtloom/refdaemon/config/webhook"
)

func manifests(t *testing.T, e webhook.Endpoint) map[string]*unstructured.Unstructured {
	t.Helper()
	objects, err := webhook.Manifests(e)
	if err != nil {
		t.Fatal(err)
	}
	byKind := map[string]*unstructured.Unstructured{}
	for _, o := range objects {
		byKind[o.GetKind()] = o
	}
	return byKind
}

func mutating(t *testing.T, e webhook.Endpoint) admissionregistrationv1.MutatingWebhook {
	t.Helper()
	var c admissionregistrationv1.MutatingWebhookConfiguration
	o := manifests(t, e)["MutatingWebhookConfiguration"]
	if err := runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(o.Object, &c, true); err != nil {
		t.Fatal(err)
	}
	return c.Webhooks[0]
}

func validating(t *testing.T, e webhook.Endpoint) admissionregistrationv1.ValidatingWebhook {
	t.Helper()
	return validators(t, e)[0]
}

// evicting is the webhook that is asked about evictions.
func evicting(t *testing.T, e webhook.Endpoint) admissionregistrationv1.ValidatingWebhook {
	t.Helper()
	return validators(t, e)[2]
}

func validators(t *testing.T, e webhook.Endpoint) []admissionregistrationv1.ValidatingWebhook {
	t.Helper()
	var c admissionregistrationv1.ValidatingWebhookConfiguration
	o := manifests(t, e)["ValidatingWebhookConfiguration"]
	if err := runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(o.Object, &c, true); err != nil {
		t.Fatal(err)
	}
	return c.Webhooks
}

func TestManifests_DefaultService(t *testing.T) {
	e := webhook.Endpoint{CABundle: []byte("authority")}
	service := manifests(t, e)["Service"]
	for path, client := range map[string]admissionregistrationv1.WebhookClientConfig{
		"/mutate-vmi": mutating(t, e).ClientConfig, "/validate-vmi": validating(t, e).ClientConfig,
		"/evict-pod": evicting(t, e).ClientConfig,
	} {
		s := client.Service
		if s == nil || s.Name != service.GetName() || s.Namespace != service.GetNamespace() || *s.Path != path {
			t.Errorf("%s: service %+v", path, s)
		}
		if string(client.CABundle) != "authority" {
			t.Errorf("%s: authority %q", path, client.CABundle)
		}
	}
}

func TestManifests_URL(t *testing.T) {
	e := webhook.Endpoint{URL: "https://192.0.2.1:9443"}
	if o := manifests(t, e)["Service"]; o != nil {
		t.Error("there is a Service that nobody asks")
	}
	for want, client := range map[string]admissionregistrationv1.WebhookClientConfig{
		"https://192.0.2.1:9443/mutate-vmi": mutating(t, e).ClientConfig, "https://192.0.2.1:9443/validate-vmi": validating(t, e).ClientConfig,
		"https://192.0.2.1:9443/evict-pod": evicting(t, e).ClientConfig,
	} {
		if client.URL == nil || *client.URL != want || client.Service != nil || client.CABundle != nil {
			t.Errorf("%s: %+v", want, client)
		}
	}
}

func TestWebhooks_SameRules(t *testing.T) {
	m, v := mutating(t, webhook.Endpoint{}), validating(t, webhook.Endpoint{})
	if of := validators(t, webhook.Endpoint{})[1]; of.Name != "validate-vm.virtloom.dev" || len(of.MatchConditions) != 1 || of.MatchConditions[0] != v.MatchConditions[0] {
		t.Errorf("webhook %s has the conditions %v", of.Name, of.MatchConditions)
	}
	if len(m.Rules) != 1 || len(v.Rules) != 1 || m.Rules[0].String() != v.Rules[0].String() {
		t.Errorf("rules %v and %v", m.Rules, v.Rules)
	}
	if len(m.MatchConditions) != 1 || len(v.MatchConditions) != 1 || m.MatchConditions[0] != v.MatchConditions[0] {
		t.Errorf("conditions %v and %v", m.MatchConditions, v.MatchConditions)
	}
}

// TestEvictionWebhook_FailsClosed makes sure of what keeps a guest from being ended by a drain.
func TestEvictionWebhook_FailsClosed(t *testing.T) {
	h := evicting(t, webhook.Endpoint{})
	if *h.FailurePolicy != admissionregistrationv1.Fail || *h.SideEffects != admissionregistrationv1.SideEffectClassNoneOnDryRun {
		t.Errorf("failurePolicy %s, sideEffects %s", *h.FailurePolicy, *h.SideEffects)
	}
	if len(h.Rules) != 1 || h.Rules[0].Resources[0] != "pods/eviction" || h.NamespaceSelector != nil || h.ObjectSelector != nil {
		t.Errorf("rules %v", h.Rules)
	}
}

// TestWebhooks_ExemptNamedAccounts: in kubevirt and kube-system others run as well, whose changes are looked at.
func TestWebhooks_ExemptNamedAccounts(t *testing.T) {
	condition := mutating(t, webhook.Endpoint{}).MatchConditions[0].Expression
	for _, exempt := range []string{
		"'virtloom-controller'", "'system:serviceaccount:virtloom-system:virtloom-controller'", "'system:serviceaccount:virtloom-node:virtloom-node'",
		"'system:serviceaccount:kubevirt:kubevirt-controller'", "'system:serviceaccount:kube-system:generic-garbage-collector'",
	} {
		if !strings.Contains(condition, exempt) {
			t.Errorf("%s is not exempt: %s", exempt, condition)
		}
	}
	if strings.Contains(condition, "system:serviceaccounts") {
		t.Errorf("all accounts of a namespace are exempt: %s", condition)
	}
}
