// SPDX-License-Identifier: Apache-2.0

package config_test

import (
	"net"
	"slices"
	"strconv"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// port finds a port of a container, by name or number.
func (w *workload) port(p intstr.IntOrString) *corev1.ContainerPort {
	for i := range w.container().Ports {
		if c := &w.container().Ports[i]; p.Type == intstr.String && c.Name == p.StrVal || p.Type == intstr.Int && c.ContainerPort == p.IntVal {
			return c
		}
	}
	return nil
}

// TestPorts_MatchDaemons compares what Pods say with what their arguments say.
func TestPorts_MatchDaemons(t *testing.T) {
	each(t, func(t *testing.T, all []*unstructured.Unstructured) {
		for name, w := range workloads(t, all) {
			for i := range w.container().Ports {
				p := &w.container().Ports[i]
				address := flag(t, w, p.Name+"-address")
				if _, port, err := net.SplitHostPort(address); err != nil || port != strconv.Itoa(int(p.ContainerPort)) {
					t.Errorf("%s: port %s is %d, but it is to listen at %s", name, p.Name, p.ContainerPort, address)
				}
			}
			for path, probe := range map[string]*corev1.Probe{"/healthz": w.container().LivenessProbe, "/readyz": w.container().ReadinessProbe} {
				if probe == nil || probe.HTTPGet == nil || probe.HTTPGet.Path != path {
					t.Errorf("%s: probe of %s is %v", name, path, probe)
				} else if p := w.port(probe.HTTPGet.Port); p == nil || p.Name != "health" {
					t.Errorf("%s: %s is asked for at port %s", name, path, &probe.HTTPGet.Port)
				}
			}
		}
	})
}

// selected are the workloads whose Pods a selector takes.
func selected(t *testing.T, all []*unstructured.Unstructured, namespace string, by *metav1.LabelSelector) []*workload {
	t.Helper()
	s, err := metav1.LabelSelectorAsSelector(by)
	must(t, err)
	var found []*workload
	for _, w := range workloads(t, all) {
		if w.namespace == namespace && s.Matches(labels.Set(w.pod.Labels)) {
			found = append(found, w)
		}
	}
	return found
}

// amongThemselves reports whether a rule admits only the Pods that its policy selects.
func amongThemselves(rule networkingv1.NetworkPolicyIngressRule, p *networkingv1.NetworkPolicy) bool {
	return len(rule.From) == 1 && rule.From[0].NamespaceSelector == nil && rule.From[0].IPBlock == nil &&
		len(p.Spec.PodSelector.MatchLabels) > 0 && equality.Semantic.DeepEqual(rule.From[0].PodSelector, &p.Spec.PodSelector)
}

func TestNetworkPolicies_OpenPorts(t *testing.T) {
	each(t, func(t *testing.T, all []*unstructured.Unstructured) {
		closed, opened := map[string]bool{}, map[string]bool{}
		for _, p := range of[networkingv1.NetworkPolicy](t, all, "NetworkPolicy") {
			of := selected(t, all, p.Namespace, &p.Spec.PodSelector)
			if len(of) == 0 {
				t.Errorf("%s/%s is about no Pod", p.Namespace, p.Name)
			}
			if len(p.Spec.Ingress)+len(p.Spec.Egress) == 0 && len(p.Spec.PolicyTypes) == 2 && len(p.Spec.PodSelector.MatchLabels) == 0 {
				closed[p.Namespace] = true
			}
			for _, rule := range p.Spec.Ingress {
				if len(rule.Ports) == 0 && !amongThemselves(rule, p) {
					t.Errorf("%s/%s opens all ports to %v", p.Namespace, p.Name, rule.From)
				}
				for _, port := range rule.Ports {
					for _, w := range of {
						c := w.port(*port.Port)
						if c == nil || *port.Protocol != c.Protocol {
							t.Errorf("%s/%s opens port %s, which %s does not have", p.Namespace, p.Name, port.Port, w.name)
							continue
						}
						opened[w.name+" "+c.Name] = true
					}
				}
			}
		}
		for name, w := range workloads(t, all) {
			if !closed[w.namespace] {
				t.Errorf("%s: nothing closes namespace %s", name, w.namespace)
			}
			for i := range w.container().Ports {
				// The kubelet of the node asks for health, which no policy keeps it from.
				if p := w.container().Ports[i].Name; p != "health" && !opened[w.name+" "+p] {
					t.Errorf("%s: nobody may reach port %s", name, p)
				}
			}
		}
	})
}

func TestServices_SelectPods(t *testing.T) {
	all := objects(t, "complete")
	for _, s := range of[corev1.Service](t, all, "Service") {
		pods := selected(t, all, s.Namespace, metav1.SetAsLabelSelector(s.Spec.Selector))
		if len(pods) != 1 {
			t.Errorf("Service %s has Pods of %d kinds", s.Name, len(pods))
			continue
		}
		for _, p := range s.Spec.Ports {
			if pods[0].port(p.TargetPort) == nil {
				t.Errorf("Service %s leads to port %s, which %s does not have", s.Name, &p.TargetPort, pods[0].name)
			}
		}
	}
}

func TestDisruptionBudget_KeepsOneReplica(t *testing.T) {
	all := objects(t, "default")
	for _, b := range of[policyv1.PodDisruptionBudget](t, all, "PodDisruptionBudget") {
		if len(selected(t, all, b.Namespace, b.Spec.Selector)) != 1 || b.Spec.MinAvailable.IntValue() != 1 {
			t.Errorf("budget %s: %+v", b.Name, b.Spec)
		}
	}
	d := workloads(t, all)["controller"]
	if a := d.pod.Spec.Affinity; a == nil || a.PodAntiAffinity == nil || !slices.ContainsFunc(a.PodAntiAffinity.PreferredDuringSchedulingIgnoredDuringExecution,
		func(w corev1.WeightedPodAffinityTerm) bool {
			return w.PodAffinityTerm.TopologyKey == corev1.LabelHostname && len(selected(t, all, d.namespace, w.PodAffinityTerm.LabelSelector)) == 1
		}) {
		t.Error("both replicas go to one node")
	}
}
