// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"strings"

	certificatesv1 "k8s.io/api/certificates/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/virtloom/virtloom/refdaemon/authority"
	"github.com/virtloom/virtloom/refdaemon/config"
	"github.com/virtloom/virtloom/refdaemon/guard"
)

// keyOf returns the key of NAMESPACE/NAME, which the configuration has validated.
func keyOf(text string) types.NamespacedName {
	namespace, name, _ := strings.Cut(text, "/")
	return types.NamespacedName{Namespace: namespace, Name: name}
}

// cacheRequests keeps requests to other signers, which may be many, out of the cache.
func cacheRequests(cached map[client.Object]cache.ByObject) {
	cached[&certificatesv1.CertificateSigningRequest{}] = cache.ByObject{Field: authority.Requests()}
}

// addCertificates registers the authority of node agents.
func (o *controller) addCertificates(_ context.Context, mgr ctrl.Manager) error {
	c := &o.config.NodeCertificates
	if c.Secret == "" {
		return nil
	}
	err := mgr.Add(&authority.Keeper{
		Reader: mgr.GetAPIReader(), Writer: mgr.GetClient(), Secret: keyOf(c.Secret), ConfigMap: keyOf(c.ConfigMap),
		Lifetime: c.AuthorityLifetime.Duration, CertificateLifetime: c.Lifetime.Duration,
	})
	if err != nil {
		return fmt.Errorf("maintain the authority of node agents: %w", err)
	}
	return (&authority.Signer{
		Client: mgr.GetClient(), Reader: mgr.GetAPIReader(), Secret: keyOf(c.Secret), Lifetime: c.Lifetime.Duration,
	}).SetupWithManager(mgr)
}

// addGuard registers the guard against the deletion of what VMIs depend on.
func (o *controller) addGuard(_ context.Context, mgr ctrl.Manager) error {
	if !o.config.DeletionGuard {
		return nil
	}
	all, err := config.Manifests()
	if err != nil {
		return err
	}
	return (&guard.Keeper{Client: mgr.GetClient(), Reader: mgr.GetAPIReader(), Guarded: all}).SetupWithManager(mgr)
}
