// SPDX-License-Identifier: Apache-2.0

package template_test

import (
	"fmt"
	"path"
	"reflect"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
)

// podCheck collects the faults of a Pod that an API server would reject, as far as they can be detected without one.
type podCheck struct{ faults []string }

// faultsOf returns the faults of a rendered Pod.
func faultsOf(pod *corev1.Pod) []string {
	c := &podCheck{}
	c.metadata(&pod.ObjectMeta)
	volumes := c.volumes(pod.Spec.Volumes)
	claims := c.claims(pod.Spec.ResourceClaims)
	names := map[string]bool{}
	c.must(len(pod.Spec.Containers) > 0, "spec.containers: none")
	for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			at := "container " + list[i].Name
			c.unique(names, list[i].Name, at)
			c.container(at, &list[i], volumes, claims)
		}
	}
	c.settings(&pod.Spec)
	c.affinity(pod.Spec.Affinity)
	return c.faults
}

func (c *podCheck) must(ok bool, format string, args ...any) {
	if !ok {
		c.faults = append(c.faults, fmt.Sprintf(format, args...))
	}
}

func (c *podCheck) valid(problems []string, at, value string) {
	c.must(len(problems) == 0, "%s: %q: %v", at, value, problems)
}

func (c *podCheck) unique(seen map[string]bool, name, at string) {
	c.must(!seen[name], "%s: %q is a duplicate", at, name)
	seen[name] = true
}

func (c *podCheck) labels(at string, labels map[string]string) {
	for key, value := range labels {
		c.valid(validation.IsQualifiedName(key), at, key)
		c.valid(validation.IsValidLabelValue(value), at+"["+key+"]", value)
	}
}

func (c *podCheck) metadata(m *metav1.ObjectMeta) {
	c.valid(validation.IsDNS1123Subdomain(m.Name), "metadata.name", m.Name)
	c.valid(validation.IsDNS1123Label(m.Namespace), "metadata.namespace", m.Namespace)
	c.labels("metadata.labels", m.Labels)
	size := 0
	for key, value := range m.Annotations {
		c.valid(validation.IsQualifiedName(strings.ToLower(key)), "metadata.annotations", key)
		size += len(key) + len(value)
	}
	c.must(size <= 256<<10, "metadata.annotations: %d bytes", size)
	for _, o := range m.OwnerReferences {
		c.must(o.Name != "" && o.UID != "" && o.Kind != "" && o.APIVersion != "", "metadata.ownerReferences: %v", o)
	}
}

func (c *podCheck) volumes(volumes []corev1.Volume) map[string]*corev1.Volume {
	byName, seen := map[string]*corev1.Volume{}, map[string]bool{}
	for i := range volumes {
		v := &volumes[i]
		at := "volume " + v.Name
		c.valid(validation.IsDNS1123Label(v.Name), at, v.Name)
		c.unique(seen, v.Name, at)
		byName[v.Name] = v
		sources := 0
		for field, source := range reflect.ValueOf(v.VolumeSource).Fields() {
			if field.Type.Kind() == reflect.Pointer && !source.IsNil() {
				sources++
			}
		}
		c.must(sources == 1, "%s: %d sources", at, sources)
		c.source(at, &v.VolumeSource)
	}
	return byName
}

func (c *podCheck) source(at string, s *corev1.VolumeSource) {
	switch {
	case s.PersistentVolumeClaim != nil:
		c.valid(validation.IsDNS1123Subdomain(s.PersistentVolumeClaim.ClaimName), at, s.PersistentVolumeClaim.ClaimName)
	case s.Secret != nil:
		c.must(s.Secret.SecretName != "", "%s: no name of a Secret", at)
	case s.ConfigMap != nil:
		c.must(s.ConfigMap.Name != "", "%s: no name of a ConfigMap", at)
	case s.HostPath != nil:
		c.must(s.HostPath.Path != "" && !dotted(s.HostPath.Path), "%s: path %q", at, s.HostPath.Path)
	case s.Image != nil:
		c.must(s.Image.Reference != "" && strings.TrimSpace(s.Image.Reference) == s.Image.Reference, "%s: image %q", at, s.Image.Reference)
		c.pullPolicy(at, s.Image.PullPolicy)
	case s.DownwardAPI != nil:
		for _, item := range s.DownwardAPI.Items {
			c.must(item.Path != "" && !path.IsAbs(item.Path) && !dotted(item.Path), "%s: path %q", at, item.Path)
			c.must((item.FieldRef == nil) != (item.ResourceFieldRef == nil), "%s: %q has no or two references", at, item.Path)
			c.must(item.Mode == nil || *item.Mode >= 0 && *item.Mode <= 0o777, "%s: mode of %q", at, item.Path)
		}
	}
}

func (c *podCheck) pullPolicy(at string, p corev1.PullPolicy) {
	switch p {
	case "", corev1.PullAlways, corev1.PullIfNotPresent, corev1.PullNever:
	default:
		c.must(false, "%s: pull policy %q", at, p)
	}
}

// dotted reports whether a path contains "..".
func dotted(p string) bool {
	for part := range strings.SplitSeq(p, "/") {
		if part == ".." {
			return true
		}
	}
	return false
}

func (c *podCheck) claims(claims []corev1.PodResourceClaim) map[string]bool {
	seen := map[string]bool{}
	for _, claim := range claims {
		at := "resource claim " + claim.Name
		c.valid(validation.IsDNS1123Label(claim.Name), at, claim.Name)
		c.unique(seen, claim.Name, at)
		c.must((claim.ResourceClaimName == nil) != (claim.ResourceClaimTemplateName == nil), "%s: no or two sources", at)
		for _, name := range []*string{claim.ResourceClaimName, claim.ResourceClaimTemplateName} {
			if name != nil {
				c.valid(validation.IsDNS1123Subdomain(*name), at, *name)
			}
		}
	}
	return seen
}

func (c *podCheck) container(at string, k *corev1.Container, volumes map[string]*corev1.Volume, claims map[string]bool) {
	c.valid(validation.IsDNS1123Label(k.Name), at, k.Name)
	c.must(k.Image != "" && strings.TrimSpace(k.Image) == k.Image, "%s: image %q", at, k.Image)
	c.pullPolicy(at, k.ImagePullPolicy)
	env, paths, ports := map[string]bool{}, map[string]bool{}, map[string]bool{}
	for _, e := range k.Env {
		c.valid(validation.IsRelaxedEnvVarName(e.Name), at+": env", e.Name)
		c.unique(env, e.Name, at+": env")
	}
	for _, m := range k.VolumeMounts {
		c.must(volumes[m.Name] != nil, "%s: mount of unknown volume %q", at, m.Name)
		c.must(m.MountPath != "", "%s: mount of %q without a path", at, m.Name)
		c.unique(paths, m.MountPath, at+": mount path")
		c.must(!path.IsAbs(m.SubPath) && !dotted(m.SubPath), "%s: sub path %q", at, m.SubPath)
	}
	for _, d := range k.VolumeDevices {
		v := volumes[d.Name]
		c.must(v != nil && v.PersistentVolumeClaim != nil, "%s: device of volume %q, which is not a claim", at, d.Name)
		c.must(d.DevicePath != "" && !dotted(d.DevicePath), "%s: device path %q", at, d.DevicePath)
		c.unique(paths, d.DevicePath, at+": device path")
	}
	for _, p := range k.Ports {
		c.must(p.ContainerPort > 0 && p.ContainerPort < 65536, "%s: port %d", at, p.ContainerPort)
		c.must(p.Protocol == "" || p.Protocol == "TCP" || p.Protocol == "UDP" || p.Protocol == "SCTP", "%s: protocol %q", at, p.Protocol)
		if p.Name != "" {
			c.valid(validation.IsValidPortName(p.Name), at+": port", p.Name)
			c.unique(ports, p.Name, at+": port")
		}
	}
	c.resources(at, &k.Resources, claims)
	for _, probe := range []*corev1.Probe{k.ReadinessProbe, k.LivenessProbe} {
		c.probe(at, probe)
	}
}

func (c *podCheck) resources(at string, r *corev1.ResourceRequirements, claims map[string]bool) {
	for _, list := range []corev1.ResourceList{r.Requests, r.Limits} {
		for name, q := range list {
			c.valid(validation.IsQualifiedName(string(name)), at+": resource", string(name))
			c.must(q.Sign() >= 0, "%s: %s is %s", at, name, q.String())
			c.must(name == "cpu" || name == "memory" || name == "ephemeral-storage" || strings.HasPrefix(string(name), "hugepages-") ||
				strings.Contains(string(name), "/"), "%s: %s is not a resource", at, name)
		}
	}
	for name, limit := range r.Limits {
		request, asked := r.Requests[name]
		c.must(!asked || request.Cmp(limit) <= 0, "%s: request of %s of %s is above the limit %s", at, request.String(), name, limit.String())
		fixed := strings.Contains(string(name), "/") || strings.HasPrefix(string(name), "hugepages-")
		c.must(!fixed || !asked || request.Cmp(limit) == 0, "%s: request of %s differs from the limit", at, name)
		c.must(!fixed || whole(limit), "%s: %s of %s is not whole", at, limit.String(), name)
	}
	for name, request := range r.Requests {
		limit, limited := r.Limits[name]
		pages := strings.HasPrefix(string(name), "hugepages-")
		c.must(!(pages || strings.Contains(string(name), "/")) || limited && limit.Cmp(request) == 0, "%s: %s is requested without a limit", at, name)
		c.must(!pages || len(r.Requests) > 1, "%s: hugepages without memory or CPU", at)
	}
	seen := map[string]bool{}
	for _, use := range r.Claims {
		c.must(claims[use.Name], "%s: claim %q not found", at, use.Name)
		c.unique(seen, use.Name+"/"+use.Request, at+": claim")
	}
}

func whole(q resource.Quantity) bool { return resource.NewQuantity(q.Value(), q.Format).Cmp(q) == 0 }

func (c *podCheck) probe(at string, p *corev1.Probe) {
	if p == nil {
		return
	}
	handlers := 0
	for _, set := range []bool{p.Exec != nil, p.HTTPGet != nil, p.TCPSocket != nil, p.GRPC != nil} {
		if set {
			handlers++
		}
	}
	c.must(handlers == 1, "%s: probe with %d handlers", at, handlers)
	c.must(p.Exec == nil || len(p.Exec.Command) > 0, "%s: probe without command", at)
	c.must(min(p.InitialDelaySeconds, p.TimeoutSeconds, p.PeriodSeconds, p.SuccessThreshold, p.FailureThreshold) >= 0, "%s: probe with a negative number", at)
}

func (c *podCheck) settings(s *corev1.PodSpec) {
	c.labels("spec.nodeSelector", s.NodeSelector)
	for field, name := range map[string]string{"spec.hostname": s.Hostname, "spec.subdomain": s.Subdomain} {
		if name != "" {
			c.valid(validation.IsDNS1123Label(name), field, name)
		}
	}
	for field, name := range map[string]string{"spec.serviceAccountName": s.ServiceAccountName, "spec.priorityClassName": s.PriorityClassName} {
		if name != "" {
			c.valid(validation.IsDNS1123Subdomain(name), field, name)
		}
	}
	c.must(s.TerminationGracePeriodSeconds == nil || *s.TerminationGracePeriodSeconds >= 0, "spec.terminationGracePeriodSeconds is negative")
	for _, t := range s.Tolerations {
		c.must(t.TolerationSeconds == nil || t.Effect == corev1.TaintEffectNoExecute, "spec.tolerations: seconds with effect %q", t.Effect)
		if t.Key != "" {
			c.valid(validation.IsQualifiedName(t.Key), "spec.tolerations", t.Key)
		}
	}
}

func (c *podCheck) affinity(a *corev1.Affinity) {
	if a == nil {
		return
	}
	if n := a.NodeAffinity; n != nil && n.RequiredDuringSchedulingIgnoredDuringExecution != nil {
		terms := n.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
		c.must(len(terms) > 0, "spec.affinity.nodeAffinity: required without terms")
		for _, term := range terms {
			for _, e := range term.MatchExpressions {
				c.valid(validation.IsQualifiedName(e.Key), "spec.affinity.nodeAffinity", e.Key)
			}
		}
	}
	var terms []corev1.PodAffinityTerm
	if a.PodAffinity != nil {
		terms = append(terms, a.PodAffinity.RequiredDuringSchedulingIgnoredDuringExecution...)
	}
	if a.PodAntiAffinity != nil {
		terms = append(terms, a.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution...)
	}
	for _, term := range terms {
		c.valid(validation.IsQualifiedName(term.TopologyKey), "topologyKey", term.TopologyKey)
		_, err := metav1.LabelSelectorAsSelector(term.LabelSelector)
		c.must(err == nil, "affinity to Pods: %v", err)
	}
}

// TestPodCheck_Faults breaks a Pod in many ways: the check must detect each.
func TestPodCheck_Faults(t *testing.T) {
	compute := func(p *corev1.Pod) *corev1.Container { return &p.Spec.Containers[0] }
	for name, spoil := range map[string]func(*corev1.Pod){
		"no name":               func(p *corev1.Pod) { p.Name = "" },
		"label value":           func(p *corev1.Pod) { p.Labels["a"] = "no spaces" },
		"annotation key":        func(p *corev1.Pod) { p.Annotations["a/b/c"] = "" },
		"volume twice":          func(p *corev1.Pod) { p.Spec.Volumes = append(p.Spec.Volumes, p.Spec.Volumes[0]) },
		"volume without source": func(p *corev1.Pod) { p.Spec.Volumes[0].VolumeSource = corev1.VolumeSource{} },
		"mount without volume":  func(p *corev1.Pod) { p.Spec.Volumes = p.Spec.Volumes[1:] },
		"mount path twice":      func(p *corev1.Pod) { compute(p).VolumeMounts[1].MountPath = compute(p).VolumeMounts[0].MountPath },
		"sub path":              func(p *corev1.Pod) { compute(p).VolumeMounts[0].SubPath = "../x" },
		"env twice":             func(p *corev1.Pod) { compute(p).Env = append(compute(p).Env, compute(p).Env[0]) },
		"port":                  func(p *corev1.Pod) { compute(p).Ports = []corev1.ContainerPort{{ContainerPort: 70000}} },
		"container twice":       func(p *corev1.Pod) { p.Spec.Containers = append(p.Spec.Containers, p.Spec.Containers[0]) },
		"no container":          func(p *corev1.Pod) { p.Spec.Containers = nil },
		"negative":              func(p *corev1.Pod) { compute(p).Resources.Requests["memory"] = *quantity("-1") },
		"request above limit":   func(p *corev1.Pod) { compute(p).Resources.Limits["memory"] = *quantity("1") },
		"device request":        func(p *corev1.Pod) { compute(p).Resources.Requests["a.b/c"] = *quantity("1") },
		"half a device":         func(p *corev1.Pod) { compute(p).Resources.Limits["a.b/c"] = *quantity("500m") },
		"claim not there":       func(p *corev1.Pod) { compute(p).Resources.Claims = []corev1.ResourceClaim{{Name: "x"}} },
		"probe without handler": func(p *corev1.Pod) { compute(p).ReadinessProbe = &corev1.Probe{} },
		"hostname":              func(p *corev1.Pod) { p.Spec.Hostname = "a.b" },
		"node selector":         func(p *corev1.Pod) { p.Spec.NodeSelector["x y"] = "" },
	} {
		t.Run(name, func(t *testing.T) {
			pod := launcher(t, input(newVMI()))
			if faults := faultsOf(pod); len(faults) > 0 {
				t.Fatalf("before: %v", faults)
			}
			spoil(pod)
			if len(faultsOf(pod)) == 0 {
				t.Error("not detected")
			}
		})
	}
}
