// SPDX-License-Identifier: Apache-2.0

package configfile

import (
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Webhooks is what the API server may ask: to fill in and check new guests, and
// to judge evictions of their Pods.
type Webhooks struct {
	// Address is HOST:PORT or :PORT to be asked at over TLS; the default, 0, leaves it to others.
	// Takes effect at the next start.
	Address string `json:"address"`
	// CertDir is a folder with tls.crt and tls.key, read again when they change; this or CertSecret is required with an
	// address. Takes effect at the next start.
	CertDir string `json:"certDir"`
	// CertSecret is NAMESPACE/NAME of the Secret in which the controller keeps a certificate that it makes, gives to the API
	// server and replaces by itself. Takes effect at the next start.
	CertSecret string `json:"certSecret"`
	// CertLifetime is that of certificates in CertSecret, which are replaced when a third of it is left. Default 90 days.
	// Takes effect at the next start.
	CertLifetime metav1.Duration `json:"certLifetime"`
	// Trust are users, or groups as group:NAME, who may write what is the control plane's of a guest,
	// besides virtloom's and KubeVirt's own. Default none.
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
			errs = append(errs, field.Forbidden(at.Child("certDir"), "has no meaning without webhooks.address (--webhook-address)"))
		}
		if w.CertSecret != "" {
			errs = append(errs, field.Forbidden(at.Child("certSecret"), "has no meaning without webhooks.address (--webhook-address)"))
		}
		if len(w.Trust) > 0 {
			errs = append(errs, field.Forbidden(at.Child("trust"), "has no meaning without webhooks.address (--webhook-address)"))
		}
		return errs
	}
	if _, _, err := HostPort(w.Address); err != nil {
		errs = append(errs, notAnAddress(at.Child("address"), w.Address, err))
	}
	errs = append(errs, w.certificate(at)...)
	return append(errs, keys(at.Child("trust"), w.Trust)...)
}

// certificate finds what is wrong with how the address proves what it is.
func (w *Webhooks) certificate(at *field.Path) field.ErrorList {
	var errs field.ErrorList
	switch namespace, name, found := strings.Cut(w.CertSecret, "/"); {
	case w.CertDir == "" && w.CertSecret == "":
		errs = append(errs, field.Required(at.Child("certDir"), "API servers ask over TLS only; name the folder of tls.crt and tls.key, or give webhooks.certSecret (--webhook-cert-secret)"))
	case w.CertDir != "" && w.CertSecret != "":
		errs = append(errs, field.Forbidden(at.Child("certSecret"), "has no meaning beside webhooks.certDir (--webhook-cert-dir); give one of both"))
	case w.CertSecret != "" && (!found || len(validation.IsDNS1123Label(namespace)) > 0 || len(validation.IsDNS1123Subdomain(name)) > 0):
		errs = append(errs, field.Invalid(at.Child("certSecret"), w.CertSecret, "is no NAMESPACE/NAME of a Secret"))
	}
	if d := w.CertLifetime.Duration; d < leastCertLifetime {
		errs = append(errs, field.Invalid(at.Child("certLifetime"), short(d), "is too short for API servers to follow; give "+short(leastCertLifetime)+" or more"))
	}
	return errs
}
