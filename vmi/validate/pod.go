// SPDX-License-Identifier: Apache-2.0

package validate

import (
	"fmt"
	"math"
	"net"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation"
	v1 "kubevirt.io/api/core/v1"
)

var podRules = []Rule{
	{"hostname", checkHostname, true},
	{"dns", checkDNS, true},
	{"grace-period", checkGracePeriod, true},
	{"strategies", checkStrategies, false},
	{"references", checkReferences, true},
	{"references", checkSchedulerName, false},
	{"probes", checkProbes, true},
}

func checkHostname(k *checker) {
	for _, host := range []struct{ field, name string }{{"hostname", k.spec.Hostname}, {"subdomain", k.spec.Subdomain}} {
		if host.name != "" {
			k.text(atSpec.child(host.field), host.name, validation.IsDNS1123Label, useDNSLabel)
		}
	}
}

// The API server's limits on a Pod's DNS configuration.
const (
	maxNameservers   = 3
	maxSearchDomains = 32
	maxSearchChars   = 2048
)

func checkDNS(k *checker) {
	c, at := k.spec.DNSConfig, atSpec.child("dnsConfig")
	oneOf(k, atSpec.child("dnsPolicy"), k.spec.DNSPolicy, corev1.DNSClusterFirst, corev1.DNSClusterFirstWithHostNet, corev1.DNSDefault, corev1.DNSNone)
	if k.spec.DNSPolicy == corev1.DNSNone && (c == nil || len(c.Nameservers) == 0) {
		k.required(at.child("nameservers"), "dnsPolicy None requires a nameserver", "add one, or use another dnsPolicy")
	}
	if c == nil {
		return
	}
	if n := len(c.Nameservers); n > maxNameservers {
		k.invalid(at.child("nameservers"), n, "exceeds the maximum", fmt.Sprintf("use at most %d", maxNameservers))
	}
	for i, server := range c.Nameservers {
		if net.ParseIP(server) == nil && !(k.existing && legacyIP(server)) {
			k.invalid(at.child("nameservers").index(i), server, "must be an IP address", "use an address such as 10.0.0.10")
		}
	}
	checkSearches(k, at.child("searches"), c.Searches)
	for i, option := range c.Options {
		if option.Name == "" {
			k.required(at.child("options").index(i).child("name"), "must be set", "set the name of the option, such as ndots")
		}
	}
}

// legacyIP reports whether the API server accepts an address in an existing object, such as one with leading zeros.
func legacyIP(s string) bool { return len(validation.IsValidIPForLegacyField(nil, s, false, nil)) == 0 }

func checkSearches(k *checker, at *fieldPath, domains []string) {
	if n := len(domains); n > maxSearchDomains || len(strings.Join(domains, " ")) > maxSearchChars {
		k.invalid(at, n, "exceeds the maximum", fmt.Sprintf("use at most %d, with %d characters in all", maxSearchDomains, maxSearchChars))
	}
	for i, domain := range domains {
		if domain != "." {
			k.text(at.index(i), strings.TrimSuffix(domain, "."), validation.IsDNS1123SubdomainWithUnderscore, useDNSName)
		}
	}
}

// Room for what is added to the VMI's grace period for its Pod.
const (
	graceMargin   = 60
	podGraceAdded = 30
)

func checkGracePeriod(k *checker) {
	margin := int64(graceMargin)
	if k.existing {
		margin = podGraceAdded
	}
	if g := k.spec.TerminationGracePeriodSeconds; g != nil && (*g < 0 || *g > math.MaxInt64-margin) {
		k.invalid(atSpec.child("terminationGracePeriodSeconds"), *g, "is out of range", "use 0 or more seconds")
	}
}

func checkStrategies(k *checker) {
	if e := k.spec.EvictionStrategy; e != nil {
		oneOf(k, atSpec.child("evictionStrategy"), *e,
			v1.EvictionStrategyNone, v1.EvictionStrategyLiveMigrate, v1.EvictionStrategyLiveMigrateIfPossible, v1.EvictionStrategyExternal)
	}
	if s := k.spec.StartStrategy; s != nil {
		oneOf(k, atSpec.child("startStrategy"), *s, v1.StartStrategyPaused)
	}
}

func checkReferences(k *checker) {
	for _, ref := range []struct{ field, name string }{
		{"priorityClassName", k.spec.PriorityClassName}, {"serviceAccountName", k.spec.ServiceAccountName},
	} {
		if ref.name != "" {
			k.text(atSpec.child(ref.field), ref.name, validation.IsDNS1123Subdomain, useDNSName)
		}
	}
}

func checkSchedulerName(k *checker) {
	if name := k.spec.SchedulerName; name != "" {
		k.text(atSpec.child("schedulerName"), name, validation.IsDNS1123Subdomain, useDNSName)
	}
}

func checkProbes(k *checker) {
	checkProbe(k, atSpec.child("readinessProbe"), k.spec.ReadinessProbe)
	checkProbe(k, atSpec.child("livenessProbe"), k.spec.LivenessProbe)
	if p := k.spec.LivenessProbe; p != nil && p.SuccessThreshold > 1 {
		k.invalid(atSpec.child("livenessProbe.successThreshold"), p.SuccessThreshold, "must not exceed 1", "remove it: the default is 1")
	}
}

// probeDelayAdded is what is added to a probe's delay for its Pod, in seconds.
const probeDelayAdded = 10

// checkProbe accepts numbers below the minimum, except for the delay: like the API, it replaces them by defaults.
func checkProbe(k *checker, at *fieldPath, p *v1.Probe) {
	if p == nil {
		return
	}
	k.only(at, chosen(alternative{"exec", p.Exec != nil}, alternative{"guestAgentPing", p.GuestAgentPing != nil},
		alternative{"httpGet", p.HTTPGet != nil}, alternative{"tcpSocket", p.TCPSocket != nil}), "exec, guestAgentPing, httpGet or tcpSocket")
	const most = math.MaxInt32 / 2 // room for what is added to the times of the VMI
	delay, timeout := [2]int32{0, most}, [2]int32{math.MinInt32, most}
	if k.existing {
		delay, timeout = [2]int32{-probeDelayAdded, math.MaxInt32 - probeDelayAdded}, [2]int32{math.MinInt32, math.MaxInt32 - 1}
	}
	for _, t := range []struct {
		field string
		limit [2]int32
		value int32
	}{{"initialDelaySeconds", delay, p.InitialDelaySeconds}, {"timeoutSeconds", timeout, p.TimeoutSeconds}} {
		if t.value < t.limit[0] || t.value > t.limit[1] {
			k.invalid(at.child(t.field), t.value, "is out of range", "use 0 or more seconds")
		}
	}
	if p.Exec != nil && len(p.Exec.Command) == 0 {
		k.required(at.child("exec.command"), "must be set", "set the command to run in the guest")
	}
	if p.TCPSocket != nil {
		checkProbePort(k, at.child("tcpSocket.port"), p.TCPSocket.Port)
	}
	if p.HTTPGet != nil {
		checkProbePort(k, at.child("httpGet.port"), p.HTTPGet.Port)
		oneOf(k, at.child("httpGet.scheme"), p.HTTPGet.Scheme, corev1.URISchemeHTTP, corev1.URISchemeHTTPS)
		for i, header := range p.HTTPGet.HTTPHeaders {
			k.text(at.child("httpGet.httpHeaders").index(i).child("name"), header.Name, validation.IsHTTPHeaderName, "use letters, digits and dashes")
		}
	}
}

func checkProbePort(k *checker, at *fieldPath, port intstr.IntOrString) {
	if port.Type == intstr.String {
		k.text(at, port.StrVal, validation.IsValidPortName, "use the name of a port, or a number from 1 to 65535")
		return
	}
	networkChecker{k}.port(at, port.IntVal)
}
