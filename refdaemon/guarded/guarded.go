// SPDX-License-Identifier: Apache-2.0

// Package guarded serves the metrics of the daemons, to everybody who reaches them or to those only whom
// the API server lets see them.
package guarded

import (
	"cmp"

	"sigs.k8s.io/controller-runtime/pkg/metrics/filters"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/virtloom/virtloom/refdaemon/configfile"
)

// Both daemons ask about whoever comes.
//
// +kubebuilder:rbac:groups=authentication.k8s.io,resources=tokenreviews,verbs=create
// +kubebuilder:rbac:groups=authorization.k8s.io,resources=subjectaccessreviews,verbs=create

// Metrics says how metrics are served: not at all without an address, and if they are to be secure, over TLS to
// those whose token the API server accepts (TokenReview) and whom it allows to get the path (SubjectAccessReview).
func Metrics(m configfile.Metrics) metricsserver.Options {
	o := metricsserver.Options{BindAddress: Address(m.Address)}
	if m.Secure {
		o.SecureServing, o.CertDir, o.FilterProvider = true, m.CertDir, filters.WithAuthenticationAndAuthorization
	}
	return o
}

// Address is an address as controller-runtime takes it, to whom an empty one is its default.
func Address(address string) string { return cmp.Or(address, "0") }
