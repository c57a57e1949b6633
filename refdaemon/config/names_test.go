// SPDX-License-Identifier: Apache-2.0

package config_test

import (
	"maps"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/virtloom/virtloom/refdaemon/authority"
)

// made by others, and said so in the manifests.
var foreign = map[string]bool{"Secret virtloom-system/virtloom-webhook-cert": true}

// TestManifests_Order follows every name that one object says of another.
func TestManifests_Order(t *testing.T) {
	each(t, func(t *testing.T, all []*unstructured.Unstructured) {
		seen := maps.Clone(foreign)
		for _, o := range all {
			for _, name := range namedBy(t, o) {
				if !seen[name] {
					t.Errorf("%s %s names %s, which does not come before it", o.GetKind(), o.GetName(), name)
				}
			}
			seen[reference(o.GetKind(), o.GetNamespace(), o.GetName())] = true
		}
	})
}

func reference(kind, namespace, name string) string {
	if namespace != "" {
		name = namespace + "/" + name
	}
	return kind + " " + name
}

// namedBy are the objects that one names.
func namedBy(t *testing.T, o *unstructured.Unstructured) []string {
	t.Helper()
	var names []string
	if o.GetNamespace() != "" {
		names = append(names, reference("Namespace", "", o.GetNamespace()))
	}
	switch o.GetKind() {
	case "Deployment", "DaemonSet":
		for _, w := range workloadOf(t, o) {
			names = append(names, w.names()...)
		}
	case "RoleBinding":
		b := as[rbacv1.RoleBinding](t, o)
		names = append(names, reference(b.RoleRef.Kind, b.Namespace, b.RoleRef.Name))
		names = append(names, subjects(b.Subjects)...)
	case "ClusterRoleBinding":
		b := as[rbacv1.ClusterRoleBinding](t, o)
		names = append(names, reference(b.RoleRef.Kind, "", b.RoleRef.Name))
		names = append(names, subjects(b.Subjects)...)
	case "ValidatingAdmissionPolicyBinding":
		policy, _, err := unstructured.NestedString(o.Object, "spec", "policyName")
		must(t, err)
		names = append(names, reference("ValidatingAdmissionPolicy", "", policy))
	}
	return names
}

func workloadOf(t *testing.T, o *unstructured.Unstructured) []*workload {
	t.Helper()
	template, _, err := unstructured.NestedMap(o.Object, "spec", "template")
	must(t, err)
	return []*workload{{o.GetNamespace(), o.GetName(), *as[corev1.PodTemplateSpec](t, &unstructured.Unstructured{Object: template})}}
}

func subjects(all []rbacv1.Subject) []string {
	var names []string
	for _, s := range all {
		if s.Kind == rbacv1.ServiceAccountKind {
			names = append(names, reference(s.Kind, s.Namespace, s.Name))
		}
	}
	return names
}

// names are what a Pod cannot do without.
func (w *workload) names() []string {
	names := []string{
		reference("ServiceAccount", w.namespace, w.pod.Spec.ServiceAccountName),
		reference("PriorityClass", "", w.pod.Spec.PriorityClassName),
	}
	for _, v := range w.pod.Spec.Volumes {
		switch {
		case v.Secret != nil:
			names = append(names, reference("Secret", w.namespace, v.Secret.SecretName))
		case v.ConfigMap != nil:
			names = append(names, reference("ConfigMap", w.namespace, v.ConfigMap.Name))
		}
	}
	for _, from := range w.container().EnvFrom {
		if from.ConfigMapRef != nil {
			names = append(names, reference("ConfigMap", w.namespace, from.ConfigMapRef.Name))
		}
	}
	return names
}

func TestMounts_HaveVolumes(t *testing.T) {
	each(t, func(t *testing.T, all []*unstructured.Unstructured) {
		for name, w := range workloads(t, all) {
			var volumes, mounts []string
			for _, v := range w.pod.Spec.Volumes {
				volumes = append(volumes, v.Name)
				// The agent finds files of the node at the path that they have there.
				if h := v.HostPath; h != nil && !slices.ContainsFunc(w.container().VolumeMounts, func(m corev1.VolumeMount) bool { return m.Name == v.Name && m.MountPath == h.Path }) {
					t.Errorf("%s: %s of the node is mounted elsewhere", name, h.Path)
				}
			}
			for i := range w.pod.Spec.Containers {
				for _, m := range w.pod.Spec.Containers[i].VolumeMounts {
					mounts = append(mounts, m.Name)
				}
			}
			slices.Sort(volumes)
			slices.Sort(mounts)
			if !slices.Equal(volumes, slices.Compact(mounts)) {
				t.Errorf("%s: volumes %v, mounts %v", name, volumes, mounts)
			}
		}
	})
}

// TestNodeAgent_PathsMounted finds folders in arguments that are not the node's.
func TestNodeAgent_PathsMounted(t *testing.T) {
	w := workloads(t, objects(t, "default"))["node"]
	for _, arg := range w.container().Args {
		_, path, _ := strings.Cut(arg, "=")
		if !strings.HasPrefix(path, "/") || strings.HasPrefix(path, "/proc/1/root/") && w.pod.Spec.HostPID {
			continue
		}
		if !slices.ContainsFunc(w.container().VolumeMounts, func(m corev1.VolumeMount) bool {
			return path == m.MountPath || strings.HasPrefix(path, m.MountPath+"/")
		}) {
			t.Errorf("%s is within the container", arg)
		}
	}
}

// TestNodeAgent_NothingByHand finds files of the node that neither the kubelet nor the agent makes.
func TestNodeAgent_NothingByHand(t *testing.T) {
	kubelets := []string{"/dev", "/var/lib/kubelet/pods", "/var/lib/kubelet/device-plugins"}
	for _, v := range workloads(t, objects(t, "default"))["node"].pod.Spec.Volumes {
		if h := v.HostPath; h != nil && !slices.Contains(kubelets, h.Path) && (h.Type == nil || *h.Type != corev1.HostPathDirectoryOrCreate) {
			t.Errorf("somebody has to make %s on every node", h.Path)
		}
	}
}

// TestRules_NoWildcards looks at every rule of what is installed.
func TestRules_NoWildcards(t *testing.T) {
	each(t, func(t *testing.T, all []*unstructured.Unstructured) {
		rules := map[string][]rbacv1.PolicyRule{}
		for _, r := range of[rbacv1.ClusterRole](t, all, "ClusterRole") {
			rules[r.Name] = append(rules[r.Name], r.Rules...)
		}
		for _, r := range of[rbacv1.Role](t, all, "Role") {
			rules["in "+r.Namespace] = append(rules["in "+r.Namespace], r.Rules...)
		}
		powers := []string{"escalate", "bind", "impersonate", "deletecollection", "sign", "approve"}
		for name, list := range rules {
			for _, r := range list {
				if slices.Contains(slices.Concat(r.APIGroups, r.Resources, r.Verbs, r.NonResourceURLs), "*") {
					t.Errorf("%s: %+v allows everything", name, r)
				}
				signs := name == "virtloom-controller" && slices.Equal(r.Resources, []string{"signers"}) && slices.Equal(r.ResourceNames, []string{authority.SignerName})
				if !signs && slices.ContainsFunc(r.Verbs, func(v string) bool { return slices.Contains(powers, v) }) {
					t.Errorf("%s: %+v gives more than it says", name, r)
				}
				// Those of the controller's certificates.
				own := name == "in virtloom-system" && len(r.ResourceNames) == 1 && slices.Contains([]string{"virtloom-webhook-serving", "virtloom-node-authority"}, r.ResourceNames[0])
				if slices.Contains(r.Resources, "secrets") && !own {
					t.Errorf("%s: %+v is about Secrets", name, r)
				}
			}
		}
	})
}

// TestPriorityClasses_AgentsFirst makes sure that no launcher Pod can push an agent off its node.
func TestPriorityClasses_AgentsFirst(t *testing.T) {
	values := map[string]int32{}
	for _, c := range of[schedulingv1.PriorityClass](t, objects(t, "default"), "PriorityClass") {
		if c.GlobalDefault {
			t.Errorf("%s is everybody's", c.Name)
		}
		values[c.Name] = c.Value
	}
	if values["virtloom-node"] <= values["virtloom-controller"] || values["virtloom-controller"] <= 0 {
		t.Errorf("priorities %v", values)
	}
}
