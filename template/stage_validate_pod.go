// SPDX-License-Identifier: Apache-2.0

package template

import (
	"fmt"
	"math"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/internal/vmirules"
	"github.com/virtloom/virtloom/template/render"
)

// faults collects the faults of a VMI.
type faults []error

func (f *faults) add(field, reason, remedy string) {
	*f = append(*f, render.Invalid(field, reason, remedy))
}

// text adds a fault if a rule of the API server rejects a string.
func (f *faults) text(field, value string, rule func(string) []string, remedy string) {
	if vmirules.Plain(value) {
		return
	}
	if problems := rule(value); len(problems) > 0 {
		f.add(field, fmt.Sprintf("%q: %s", value, problems[0]), remedy)
	}
}

// oneOf adds a fault if a value is not supported. The empty value means the default.
func (f *faults) oneOf(field, value string, known ...string) {
	if value != "" && !slices.Contains(known, value) {
		f.add(field, fmt.Sprintf("%q is not supported", value), "use "+strings.Join(known, " or "))
	}
}

const (
	useLabelName  = "use letters, digits, dashes, underscores and dots, at most 63, with an optional DNS name and slash as prefix"
	useLabelValue = "use at most 63 letters, digits, dashes, underscores and dots, beginning and ending with a letter or digit"
	useDNSLabel   = "use at most 63 lower case letters, digits and dashes"
	useDNSName    = "use lower case letters, digits, dashes and dots"
)

// checkPod returns the settings of a VMI that the API server would reject in its Pod.
func checkPod(d *render.Draft) []error {
	var f faults
	f = append(f, render.Refused(vmirules.Metadata(d.VMI()))...)
	checkHost(&f, &d.VMI().Spec)
	checkDNS(&f, d.VMI().Spec.DNSPolicy, d.VMI().Spec.DNSConfig)
	checkReferences(&f, &d.VMI().Spec)
	checkProbe(&f, "spec.readinessProbe", d.VMI().Spec.ReadinessProbe)
	checkProbe(&f, "spec.livenessProbe", d.VMI().Spec.LivenessProbe)
	if p := d.VMI().Spec.LivenessProbe; p != nil && p.SuccessThreshold > 1 {
		f.add("spec.livenessProbe.successThreshold", fmt.Sprintf("%d must not exceed 1", p.SuccessThreshold), "remove it: the default is 1")
	}
	checkScheduling(&f, d)
	return f
}

// checkLabels checks labels, or selectors for labels.
func checkLabels(f *faults, at string, labels map[string]string) {
	*f = append(*f, render.Refused(vmirules.Labels(at, labels))...)
}

func checkHost(f *faults, spec *v1.VirtualMachineInstanceSpec) {
	for _, host := range []struct{ field, name string }{{"spec.hostname", spec.Hostname}, {"spec.subdomain", spec.Subdomain}} {
		if host.name != "" {
			f.text(host.field, host.name, validation.IsDNS1123Label, useDNSLabel)
		}
	}
	switch g := spec.TerminationGracePeriodSeconds; {
	case g == nil:
	case *g < 0:
		f.add("spec.terminationGracePeriodSeconds", fmt.Sprintf("%d must not be negative", *g), "use 0 or more seconds")
	case *g > math.MaxInt64-podGraceMargin:
		f.add("spec.terminationGracePeriodSeconds", fmt.Sprintf("%d exceeds the maximum", *g), "use fewer seconds")
	}
}

// The API server's limits on a Pod's DNS configuration.
const (
	maxNameservers   = 3
	maxSearchDomains = 32
	maxSearchChars   = 2048
)

func checkDNS(f *faults, policy corev1.DNSPolicy, config *corev1.PodDNSConfig) {
	f.oneOf("spec.dnsPolicy", string(policy), string(corev1.DNSClusterFirst), string(corev1.DNSClusterFirstWithHostNet),
		string(corev1.DNSDefault), string(corev1.DNSNone))
	if policy == corev1.DNSNone && (config == nil || len(config.Nameservers) == 0) {
		f.add("spec.dnsConfig.nameservers", "must not be empty with dnsPolicy None", "add a nameserver, or use another dnsPolicy")
	}
	if config == nil {
		return
	}
	checkSearches(f, config.Searches)
	if n := len(config.Nameservers); n > maxNameservers {
		f.add("spec.dnsConfig.nameservers", fmt.Sprintf("%d entries exceed the maximum", n), fmt.Sprintf("use at most %d", maxNameservers))
	}
	for i, server := range config.Nameservers {
		if len(validation.IsValidIPForLegacyField(nil, server, false, nil)) > 0 {
			f.add(fmt.Sprintf("spec.dnsConfig.nameservers[%d]", i), fmt.Sprintf("%q must be an IP address", server), "use an address such as 10.0.0.10")
		}
	}
	for i, option := range config.Options {
		if option.Name == "" {
			f.add(fmt.Sprintf("spec.dnsConfig.options[%d].name", i), "must be set", "set the name of the option, such as ndots")
		}
	}
}

func checkSearches(f *faults, searches []string) {
	if n := len(searches); n > maxSearchDomains || len(strings.Join(searches, " ")) > maxSearchChars {
		f.add("spec.dnsConfig.searches", fmt.Sprintf("%d domains exceed the maximum", n),
			fmt.Sprintf("use at most %d with %d characters in all", maxSearchDomains, maxSearchChars))
	}
	for i, domain := range searches {
		if domain != "." {
			f.text(fmt.Sprintf("spec.dnsConfig.searches[%d]", i), strings.TrimSuffix(domain, "."), validation.IsDNS1123SubdomainWithUnderscore, useDNSName)
		}
	}
}

// checkReferences checks ports, and the names of objects that the Pod refers to.
func checkReferences(f *faults, spec *v1.VirtualMachineInstanceSpec) {
	for _, ref := range []struct{ field, name string }{
		{"spec.priorityClassName", spec.PriorityClassName}, {"spec.serviceAccountName", spec.ServiceAccountName},
	} {
		if ref.name != "" {
			f.text(ref.field, ref.name, validation.IsDNS1123Subdomain, useDNSName)
		}
	}
	for i := range spec.Volumes {
		if a := spec.Volumes[i].ServiceAccount; a != nil {
			f.text(fmt.Sprintf("spec.volumes[%d].serviceAccount.serviceAccountName", i), a.ServiceAccountName, validation.IsDNS1123Subdomain, useDNSName)
		}
	}
	claims := map[string]int{}
	for i := range spec.ResourceClaims {
		c, at := &spec.ResourceClaims[i], fmt.Sprintf("spec.resourceClaims[%d]", i)
		if first, ok := claims[c.Name]; ok {
			f.add(at+".name", fmt.Sprintf("%q is a duplicate of resourceClaims[%d]", c.Name, first), "use unique claim names")
		}
		claims[c.Name] = i
		f.text(at+".name", c.Name, validation.IsDNS1123Label, useDNSLabel)
		if (c.ResourceClaimName == nil) == (c.ResourceClaimTemplateName == nil) {
			f.add(at, "must specify either resourceClaimName or resourceClaimTemplateName", "set the claim or the template, not both")
		}
	}
	named := map[string]bool{}
	for i := range spec.Domain.Devices.Interfaces {
		for j := range spec.Domain.Devices.Interfaces[i].Ports {
			checkPort(f, fmt.Sprintf("spec.domain.devices.interfaces[%d].ports[%d]", i, j), spec.Domain.Devices.Interfaces[i].Ports[j], named)
		}
	}
}

func checkPort(f *faults, at string, p v1.Port, named map[string]bool) {
	f.oneOf(at+".protocol", p.Protocol, string(corev1.ProtocolTCP), string(corev1.ProtocolUDP), string(corev1.ProtocolSCTP))
	if p.Port < 1 || p.Port > math.MaxUint16 {
		f.add(at+".port", fmt.Sprintf("%d must be a valid port number", p.Port), "use 1 to 65535")
	}
	if p.Name == "" {
		return
	}
	f.text(at+".name", p.Name, validation.IsValidPortName, "use at most 15 lower case letters, digits and dashes")
	if named[p.Name] {
		f.add(at+".name", fmt.Sprintf("%q is a duplicate", p.Name), "use unique port names")
	}
	named[p.Name] = true
}

func checkProbe(f *faults, at string, p *v1.Probe) {
	if p == nil {
		return
	}
	var kinds []string
	for _, kind := range []struct {
		name string
		set  bool
	}{
		{"exec", p.Exec != nil}, {"guestAgentPing", p.GuestAgentPing != nil},
		{"httpGet", p.HTTPGet != nil}, {"tcpSocket", p.TCPSocket != nil},
	} {
		if kind.set {
			kinds = append(kinds, kind.name)
		}
	}
	switch len(kinds) {
	case 0:
		f.add(at, "must specify a handler", "add exec, guestAgentPing, httpGet or tcpSocket; other handlers are not supported for a guest")
	case 1:
	default:
		f.add(at, "must specify one handler, not "+strings.Join(kinds, " and "), "keep one of them")
	}
	// Defaults replace numbers below one, except for the delay, which is increased.
	if p.InitialDelaySeconds < -guestStartSeconds || p.InitialDelaySeconds > math.MaxInt32-guestStartSeconds {
		f.add(at+".initialDelaySeconds", fmt.Sprintf("%d is out of range", p.InitialDelaySeconds), "use 0 or more seconds")
	}
	if p.TimeoutSeconds == math.MaxInt32 {
		f.add(at+".timeoutSeconds", fmt.Sprintf("%d is out of range", p.TimeoutSeconds), "use fewer seconds")
	}
	checkHandler(f, at, &p.Handler)
}

func checkHandler(f *faults, at string, h *v1.Handler) {
	if h.Exec != nil && len(h.Exec.Command) == 0 {
		f.add(at+".exec.command", "must be set", "set the command to run in the guest")
	}
	if h.TCPSocket != nil {
		checkProbePort(f, at+".tcpSocket.port", h.TCPSocket.Port)
	}
	if h.HTTPGet == nil {
		return
	}
	checkProbePort(f, at+".httpGet.port", h.HTTPGet.Port)
	f.oneOf(at+".httpGet.scheme", string(h.HTTPGet.Scheme), string(corev1.URISchemeHTTP), string(corev1.URISchemeHTTPS))
	for i, header := range h.HTTPGet.HTTPHeaders {
		f.text(fmt.Sprintf("%s.httpGet.httpHeaders[%d].name", at, i), header.Name, validation.IsHTTPHeaderName, "use letters, digits and dashes")
	}
}

func checkProbePort(f *faults, at string, port intstr.IntOrString) {
	if port.Type == intstr.String {
		f.text(at, port.StrVal, validation.IsValidPortName, "use the name of a port, or a number from 1 to 65535")
	} else if port.IntVal < 1 || port.IntVal > math.MaxUint16 {
		f.add(at, fmt.Sprintf("%d must be a valid port number", port.IntVal), "use 1 to 65535")
	}
}

var pullPolicies = []string{string(corev1.PullAlways), string(corev1.PullIfNotPresent), string(corev1.PullNever)}
