// SPDX-License-Identifier: Apache-2.0

package configfile

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Webhooks configures the webhooks that default and validate new VMIs, and judge
// evictions of their Pods.
type Webhooks struct {
	// Address is HOST:PORT or :PORT to serve them at over TLS; the default, 0, serves none.
	// Takes effect at the next start.
	Address string `json:"address"`
	// CertDir is a directory with tls.crt and tls.key, reloaded when they change; this or CertSecret is required with an
	// address. Takes effect at the next start.
	CertDir string `json:"certDir"`
	// CertSecret is NAMESPACE/NAME of the Secret with a certificate that the controller issues, makes the API server trust
	// and rotates. Takes effect at the next start.
	CertSecret string `json:"certSecret"`
	// CertLifetime is the lifetime of certificates in CertSecret, which are rotated when a third of it is left. Default 90 days.
	// Takes effect at the next start.
	CertLifetime metav1.Duration `json:"certLifetime"`
	// Trust are users, or groups as group:NAME, who may write reserved fields of VMIs, besides virtloom's
	// and KubeVirt's own accounts. Default none.
	// Takes effect at the next start.
	Trust []string `json:"trust"`
}

// Lifetimes of certificates in Secrets.
const (
	defaultCertLifetime = 90 * 24 * time.Hour
	leastCertLifetime   = 15 * time.Second
)

func (w *Webhooks) validate(at *field.Path) field.ErrorList {
	var errs field.ErrorList
	if !Serves(w.Address) {
		if w.CertDir != "" {
			errs = append(errs, field.Forbidden(at.Child("certDir"), "has no effect without webhooks.address (--webhook-address)"))
		}
		if w.CertSecret != "" {
			errs = append(errs, field.Forbidden(at.Child("certSecret"), "has no effect without webhooks.address (--webhook-address)"))
		}
		if len(w.Trust) > 0 {
			errs = append(errs, field.Forbidden(at.Child("trust"), "has no effect without webhooks.address (--webhook-address)"))
		}
		return errs
	}
	if _, _, err := HostPort(w.Address); err != nil {
		errs = append(errs, notAnAddress(at.Child("address"), w.Address, err))
	}
	errs = append(errs, w.certificate(at)...)
	return append(errs, keys(at.Child("trust"), w.Trust)...)
}

// certificate validates the settings of the serving certificate.
func (w *Webhooks) certificate(at *field.Path) field.ErrorList {
	var errs field.ErrorList
	switch {
	case w.CertDir == "" && w.CertSecret == "":
		errs = append(errs, field.Required(at.Child("certDir"), "webhooks are served over TLS only; specify the directory of tls.crt and tls.key, or webhooks.certSecret (--webhook-cert-secret)"))
	case w.CertDir != "" && w.CertSecret != "":
		errs = append(errs, field.Forbidden(at.Child("certSecret"), "and webhooks.certDir (--webhook-cert-dir) exclude each other; specify one of them"))
	case w.CertSecret != "" && !isKey(w.CertSecret):
		errs = append(errs, field.Invalid(at.Child("certSecret"), w.CertSecret, "is not NAMESPACE/NAME of a Secret"))
	}
	if d := w.CertLifetime.Duration; d < leastCertLifetime {
		errs = append(errs, field.Invalid(at.Child("certLifetime"), short(d), "is too short to rotate; must be "+short(leastCertLifetime)+" or more"))
	}
	return errs
}
