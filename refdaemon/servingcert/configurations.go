// SPDX-License-Identifier: Apache-2.0

package servingcert

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"slices"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/virtloom/virtloom/refdaemon/rotation"
)

// configuration is a webhook configuration, with the client configurations of its webhooks.
type configuration struct {
	client.Object
	clients []admissionregistrationv1.WebhookClientConfig
}

// configurations reads both webhook configurations.
func (k *Keeper) configurations(ctx context.Context) ([]configuration, error) {
	var (
		m   admissionregistrationv1.MutatingWebhookConfiguration
		v   admissionregistrationv1.ValidatingWebhookConfiguration
		key = client.ObjectKey{Name: Configuration}
	)
	if err := errors.Join(k.Reader.Get(ctx, key, &m), k.Reader.Get(ctx, key, &v)); err != nil {
		return nil, fmt.Errorf("read the webhook configurations, which come with the manifests: %w", err)
	}
	all := []configuration{{Object: &m}, {Object: &v}}
	for i := range m.Webhooks {
		all[0].clients = append(all[0].clients, m.Webhooks[i].ClientConfig)
	}
	for i := range v.Webhooks {
		all[1].clients = append(all[1].clients, v.Webhooks[i].ClientConfig)
	}
	return all, nil
}

// hosts returns the host names and addresses of the webhooks, sorted.
func hosts(all []configuration) []string {
	var out []string
	for _, c := range all {
		for _, how := range c.clients {
			switch {
			case how.Service != nil:
				out = append(out, how.Service.Name+"."+how.Service.Namespace+".svc")
			case how.URL != nil:
				if u, err := url.Parse(*how.URL); err == nil && u.Hostname() != "" {
					out = append(out, u.Hostname())
				}
			}
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// trust reports whether all webhooks trust an authority.
func trust(all []configuration, authority *x509.Certificate) bool {
	for _, c := range all {
		for _, how := range c.clients {
			if !rotation.Contains(how.CABundle, authority) {
				return false
			}
		}
	}
	return true
}

// operation is an operation of a JSON patch.
type operation struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	Value any    `json:"value"`
}

// publish sets the authorities of all webhooks that have others. A configuration that was changed since it was read is left
// for the next look.
func (k *Keeper) publish(ctx context.Context, all []configuration, authorities []byte) error {
	var errs []error
	for _, c := range all {
		patch := []operation{{"test", "/metadata/resourceVersion", c.GetResourceVersion()}}
		for i, how := range c.clients {
			if !bytes.Equal(how.CABundle, authorities) {
				patch = append(patch, operation{"add", fmt.Sprintf("/webhooks/%d/clientConfig/caBundle", i), authorities})
			}
		}
		if len(patch) == 1 {
			continue
		}
		text, err := json.Marshal(patch)
		if err == nil {
			err = k.Writer.Patch(ctx, c.Object, client.RawPatch(types.JSONPatchType, text))
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("set the authority in %T %s: %w", c.Object, c.GetName(), err))
		}
	}
	return errors.Join(errs...)
}
