// SPDX-License-Identifier: Apache-2.0

// Package metricsauth configures the metrics servers of the daemons, open to all clients or only to those that
// the API server authorizes.
package metricsauth

import (
	"cmp"

	"sigs.k8s.io/controller-runtime/pkg/metrics/filters"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/virtloom/virtloom/refdaemon/configfile"
)

// Both daemons review their clients.
//
// +kubebuilder:rbac:groups=authentication.k8s.io,resources=tokenreviews,verbs=create
// +kubebuilder:rbac:groups=authorization.k8s.io,resources=subjectaccessreviews,verbs=create

// Metrics returns the options of the metrics server: disabled without an address, and if secure, over TLS to clients
// whose token the API server accepts (TokenReview) and who may get the path (SubjectAccessReview).
func Metrics(m configfile.Metrics) metricsserver.Options {
	o := metricsserver.Options{BindAddress: Address(m.Address)}
	if m.Secure {
		o.SecureServing, o.CertDir, o.FilterProvider = true, m.CertDir, filters.WithAuthenticationAndAuthorization
	}
	return o
}

// Address returns an address for controller-runtime, for which an empty one means its default.
func Address(address string) string { return cmp.Or(address, "0") }
