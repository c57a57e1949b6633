// SPDX-License-Identifier: Apache-2.0

package configfile

import (
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/virtloom/virtloom/refdaemon/authority"
)

const (
	defaultNodeCertLifetime  = 24 * time.Hour
	defaultAuthorityLifetime = 365 * 24 * time.Hour
)

// NodeCertificates configures the authority of the node agents' certificates.
type NodeCertificates struct {
	// Secret is NAMESPACE/NAME of the Secret with the authority, which the controller issues and rotates. The controller then
	// signs the certificates that node agents request. Default none.
	// Takes effect at the next start.
	Secret string `json:"secret"`
	// ConfigMap is NAMESPACE/NAME of the ConfigMap in which the authority is published for node agents; required with Secret.
	// Takes effect at the next start.
	ConfigMap string `json:"configMap"`
	// Lifetime is the lifetime of node agents' certificates. Default 24h.
	// Takes effect at the next start.
	Lifetime metav1.Duration `json:"lifetime"`
	// AuthorityLifetime is the lifetime of the authority, which is rotated when a third of it is left. Default 365 days.
	// Takes effect at the next start.
	AuthorityLifetime metav1.Duration `json:"authorityLifetime"`
}

func newNodeCertificates() NodeCertificates {
	return NodeCertificates{Lifetime: metav1.Duration{Duration: defaultNodeCertLifetime}, AuthorityLifetime: metav1.Duration{Duration: defaultAuthorityLifetime}}
}

func (n *NodeCertificates) options() []Option {
	return []Option{
		option("nodeCertificates.secret", "node-authority-secret", "`NAMESPACE/NAME` of the Secret for the authority of node agents, which is issued and rotated, and signs the certificates that they request; empty signs none", textValue(&n.Secret)),
		option("nodeCertificates.configMap", "node-authority-configmap", "`NAMESPACE/NAME` of the ConfigMap in which that authority is published for node agents", textValue(&n.ConfigMap)),
		option("nodeCertificates.lifetime", "node-cert-lifetime", "`time` for which certificates of node agents are valid", duration(&n.Lifetime)),
		option("nodeCertificates.authorityLifetime", "node-authority-lifetime", "`time` for which the authority of node agents is valid; it is rotated when a third of it is left", duration(&n.AuthorityLifetime)),
	}
}

func (n *NodeCertificates) validate(at *field.Path) field.ErrorList {
	var errs field.ErrorList
	if n.Secret == "" && n.ConfigMap == "" {
		return nil
	}
	for _, o := range []struct{ field, kind, is string }{{"secret", "Secret", n.Secret}, {"configMap", "ConfigMap", n.ConfigMap}} {
		if o.is == "" {
			errs = append(errs, field.Required(at.Child(o.field), "the authority of node agents needs a Secret (--node-authority-secret) and a ConfigMap (--node-authority-configmap)"))
		} else if !isKey(o.is) {
			errs = append(errs, field.Invalid(at.Child(o.field), o.is, "is not NAMESPACE/NAME of a "+o.kind))
		}
	}
	if d := n.Lifetime.Duration; d < leastCertLifetime {
		errs = append(errs, field.Invalid(at.Child("lifetime"), short(d), "is too short to rotate; must be "+short(leastCertLifetime)+" or more"))
	}
	if d, least := n.AuthorityLifetime.Duration, authority.Shares*n.Lifetime.Duration; d < least {
		errs = append(errs, field.Invalid(at.Child("authorityLifetime"), short(d), "is too short to rotate; must be "+short(least)+" or more, three times nodeCertificates.lifetime (--node-cert-lifetime)"))
	}
	return errs
}

// isKey reports whether a text is NAMESPACE/NAME of an object.
func isKey(text string) bool {
	namespace, name, found := strings.Cut(text, "/")
	return found && len(validation.IsDNS1123Label(namespace)) == 0 && len(validation.IsDNS1123Subdomain(name)) == 0
}
