// SPDX-License-Identifier: Apache-2.0

package template_test

import (
	"errors"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/template"
	"github.com/virtloom/virtloom/template/render"
)

func TestMetadata_RejectedByAPIServer(t *testing.T) {
	for name, tc := range map[string]struct {
		vmi   change
		field string
	}{
		"name":             {named("Test_VMI"), "metadata.name"},
		"name of dots":     {named(".."), "metadata.name"},
		"long name":        {named(strings.Repeat("a", 254)), "metadata.name"},
		"namespace":        {func(vmi *v1.VirtualMachineInstance) { vmi.Namespace = "default/testvmi" }, "metadata.namespace"},
		"UID":              {func(vmi *v1.VirtualMachineInstance) { vmi.UID = "a b" }, "metadata.uid"},
		"label key":        {vmiLabels(map[string]string{"a b": ""}), "metadata.labels"},
		"label value":      {vmiLabels(map[string]string{"a": "b c"}), "metadata.labels[a]"},
		"long label value": {vmiLabels(map[string]string{"a": strings.Repeat("b", 64)}), "metadata.labels[a]"},
		"annotation key":   {annotate("a b", ""), "metadata.annotations"},
		"mesh label":       {annotate("sidecar.istio.io/inject", "yes please"), "metadata.annotations[sidecar.istio.io/inject]"},
		"log filters":      {annotate("kubevirt.io/libvirt-log-filters", "--allow-emulation"), "metadata.annotations[kubevirt.io/libvirt-log-filters]"},
		"hostname":         {hostname("a.b"), "spec.hostname"},
		"long hostname":    {hostname(strings.Repeat("a", 64)), "spec.hostname"},
		"capital hostname": {hostname("Host"), "spec.hostname"},
		"hostname of dash": {hostname("host-"), "spec.hostname"},
		"subdomain":        {func(vmi *v1.VirtualMachineInstance) { vmi.Spec.Subdomain = "a.b" }, "spec.subdomain"},
		"log level":        {vmiLabels(map[string]string{"logVerbosity": "abc"}), "metadata.labels[logVerbosity]"},
		"no log level":     {vmiLabels(map[string]string{"logVerbosity": ""}), "metadata.labels[logVerbosity]"},
		"huge log level":   {vmiLabels(map[string]string{"logVerbosity": "99999999999"}), "metadata.labels[logVerbosity]"},
		"fractional level": {vmiLabels(map[string]string{"logVerbosity": "1.5"}), "metadata.labels[logVerbosity]"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := template.Default().Launcher(input(newVMI(tc.vmi)))
			var e *render.Error
			if !errors.As(err, &e) || e.Field != tc.field || !errors.Is(err, render.ErrInvalid) || e.Remedy == "" || e.Reason == "" {
				t.Errorf("got %v, want ErrInvalid about %s with a remedy", err, tc.field)
			}
		})
	}
	if in := input(newVMI(annotate("Example.com/Team", "x"))); !slices.Contains(slices.Collect(maps.Keys(launcher(t, in).Annotations)), "Example.com/Team") {
		t.Error("annotations may have capital letters")
	}
}

func TestPod_RejectedByAPIServer(t *testing.T) {
	spec := func(f func(*v1.VirtualMachineInstanceSpec)) change {
		return func(vmi *v1.VirtualMachineInstance) { f(&vmi.Spec) }
	}
	dns := func(policy corev1.DNSPolicy, c *corev1.PodDNSConfig) change {
		return spec(func(s *v1.VirtualMachineInstanceSpec) { s.DNSPolicy, s.DNSConfig = policy, c })
	}
	claims := func(c ...v1.VirtualMachineInstanceResourceClaim) change {
		return spec(func(s *v1.VirtualMachineInstanceSpec) { s.ResourceClaims = c })
	}
	pulled := func(policy corev1.PullPolicy) v1.VolumeSource {
		return v1.VolumeSource{ContainerDisk: &v1.ContainerDiskSource{Image: "i", ImagePullPolicy: policy}}
	}
	bootImage := func(image string, policy corev1.PullPolicy) change {
		return spec(func(s *v1.VirtualMachineInstanceSpec) {
			s.Domain.Firmware = &v1.Firmware{KernelBoot: &v1.KernelBoot{
				Container: &v1.KernelBootContainer{Image: image, ImagePullPolicy: policy, KernelPath: "/vmlinuz"},
			}}
		})
	}
	for name, tc := range map[string]struct {
		vmi   change
		field string
	}{
		"unknown DNS policy":     {dns("Own", nil), "spec.dnsPolicy"},
		"DNS policy None":        {dns("None", nil), "spec.dnsConfig.nameservers"},
		"None without servers":   {dns("None", &corev1.PodDNSConfig{Searches: []string{"a"}}), "spec.dnsConfig.nameservers"},
		"nameserver by name":     {dns("", &corev1.PodDNSConfig{Nameservers: []string{"1.1.1.1", "dns"}}), "spec.dnsConfig.nameservers[1]"},
		"four nameservers":       {dns("", &corev1.PodDNSConfig{Nameservers: []string{"1.1.1.1", "1.1.1.2", "1.1.1.3", "::1"}}), "spec.dnsConfig.nameservers"},
		"search domain":          {dns("", &corev1.PodDNSConfig{Searches: []string{"ok.", "a b"}}), "spec.dnsConfig.searches[1]"},
		"33 search domains":      {dns("", &corev1.PodDNSConfig{Searches: strings.Split(strings.Repeat("a ", 32)+"a", " ")}), "spec.dnsConfig.searches"},
		"long search domains":    {dns("", &corev1.PodDNSConfig{Searches: strings.Split(strings.Repeat(strings.Repeat("a.", 100)+"a ", 11)+"a", " ")}), "spec.dnsConfig.searches"},
		"unnamed option":         {dns("", &corev1.PodDNSConfig{Options: []corev1.PodDNSConfigOption{{Value: ref("1")}}}), "spec.dnsConfig.options[0].name"},
		"negative grace":         {grace(-1), "spec.terminationGracePeriodSeconds"},
		"endless grace":          {grace(math.MaxInt64), "spec.terminationGracePeriodSeconds"},
		"priority class":         {spec(func(s *v1.VirtualMachineInstanceSpec) { s.PriorityClassName = "A" }), "spec.priorityClassName"},
		"service account":        {spec(func(s *v1.VirtualMachineInstanceSpec) { s.ServiceAccountName = "a b" }), "spec.serviceAccountName"},
		"service account volume": {volume("v", v1.VolumeSource{ServiceAccount: &v1.ServiceAccountVolumeSource{}}), "spec.volumes[0].serviceAccount.serviceAccountName"},
		"image":                  {volume("v", image("i ")), "spec.volumes[0].containerDisk.image"},
		"image of white space":   {volume("v", image(" ")), "spec.volumes[0].containerDisk.image"},
		"image of the kernel":    {bootImage(" i", ""), "spec.domain.firmware.kernelBoot.container.image"},
		"pull policy":            {volume("v", pulled("Sometimes")), "spec.volumes[0].containerDisk.imagePullPolicy"},
		"pull policy of kernel":  {bootImage("i", "always"), "spec.domain.firmware.kernelBoot.container.imagePullPolicy"},
		"claim of two sources":   {claims(v1.VirtualMachineInstanceResourceClaim{Name: "c", ResourceClaimName: ref("a"), ResourceClaimTemplateName: ref("b")}), "spec.resourceClaims[0]"},
		"claim of nothing":       {claims(v1.VirtualMachineInstanceResourceClaim{Name: "c"}), "spec.resourceClaims[0]"},
		"claim of a name twice":  {changes(resourceClaim("c"), resourceClaim("c")), "spec.resourceClaims[1].name"},
		"claim name":             {claims(v1.VirtualMachineInstanceResourceClaim{Name: "C", ResourceClaimName: ref("a")}), "spec.resourceClaims[0].name"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := template.Default().Launcher(input(newVMI(tc.vmi)))
			wantError(t, err, tc.field, render.ErrInvalid)
		})
	}
}

func TestScheduling_RejectedByAPIServer(t *testing.T) {
	tolerate := func(x corev1.Toleration) change {
		return func(vmi *v1.VirtualMachineInstance) { vmi.Spec.Tolerations = []corev1.Toleration{x} }
	}
	spread := func(all ...corev1.TopologySpreadConstraint) change {
		return func(vmi *v1.VirtualMachineInstance) { vmi.Spec.TopologySpreadConstraints = all }
	}
	good := corev1.TopologySpreadConstraint{MaxSkew: 1, TopologyKey: "zone", WhenUnsatisfiable: "ScheduleAnyway"}
	but := func(f func(*corev1.TopologySpreadConstraint)) corev1.TopologySpreadConstraint {
		c := good
		f(&c)
		return c
	}
	node := func(term corev1.NodeSelectorTerm) change {
		return affine(corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
			NodeSelectorTerms: []corev1.NodeSelectorTerm{{}, term},
		}}})
	}
	expression := func(key string, op corev1.NodeSelectorOperator, values ...string) change {
		return node(corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: key, Operator: op, Values: values}}})
	}
	byField := func(key string, op corev1.NodeSelectorOperator, values ...string) change {
		return node(corev1.NodeSelectorTerm{MatchFields: []corev1.NodeSelectorRequirement{{Key: key, Operator: op, Values: values}}})
	}
	apart := func(term corev1.PodAffinityTerm) change {
		return affine(corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{term}}})
	}
	const (
		inTerm  = "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[1]"
		inApart = "spec.affinity.podAntiAffinity.requiredDuringSchedulingIgnoredDuringExecution[0]"
	)
	for name, tc := range map[string]struct {
		vmi   change
		field string
	}{
		"toleration key":          {tolerate(corev1.Toleration{Key: "a b", Operator: "Exists"}), "spec.tolerations[0].key"},
		"toleration of nothing":   {tolerate(corev1.Toleration{}), "spec.tolerations[0].operator"},
		"toleration operator":     {tolerate(corev1.Toleration{Key: "a", Operator: "In"}), "spec.tolerations[0].operator"},
		"toleration value":        {tolerate(corev1.Toleration{Key: "a", Value: "b c"}), "spec.tolerations[0].value"},
		"value of Exists":         {tolerate(corev1.Toleration{Key: "a", Operator: "Exists", Value: "b"}), "spec.tolerations[0].value"},
		"text that is compared":   {tolerate(corev1.Toleration{Key: "a", Operator: "Gt", Value: "b"}), "spec.tolerations[0].value"},
		"toleration effect":       {tolerate(corev1.Toleration{Key: "a", Effect: "Evict"}), "spec.tolerations[0].effect"},
		"seconds without effect":  {tolerate(corev1.Toleration{Key: "a", TolerationSeconds: ref(int64(14))}), "spec.tolerations[0].tolerationSeconds"},
		"skew":                    {spread(but(func(c *corev1.TopologySpreadConstraint) { c.MaxSkew = 0 })), "spec.topologySpreadConstraints[0].maxSkew"},
		"spread over nothing":     {spread(but(func(c *corev1.TopologySpreadConstraint) { c.TopologyKey = "" })), "spec.topologySpreadConstraints[0].topologyKey"},
		"spread or else":          {spread(but(func(c *corev1.TopologySpreadConstraint) { c.WhenUnsatisfiable = "" })), "spec.topologySpreadConstraints[0].whenUnsatisfiable"},
		"spread twice":            {spread(good, good), "spec.topologySpreadConstraints[1]"},
		"domains of a preference": {spread(but(func(c *corev1.TopologySpreadConstraint) { c.MinDomains = ref(int32(2)) })), "spec.topologySpreadConstraints[0].minDomains"},
		"policy for affinity":     {spread(but(func(c *corev1.TopologySpreadConstraint) { c.NodeAffinityPolicy = ref(corev1.NodeInclusionPolicy("x")) })), "spec.topologySpreadConstraints[0].nodeAffinityPolicy"},
		"policy for taints":       {spread(but(func(c *corev1.TopologySpreadConstraint) { c.NodeTaintsPolicy = ref(corev1.NodeInclusionPolicy("x")) })), "spec.topologySpreadConstraints[0].nodeTaintsPolicy"},
		"keys without selector":   {spread(but(func(c *corev1.TopologySpreadConstraint) { c.MatchLabelKeys = []string{"a"} })), "spec.topologySpreadConstraints[0].labelSelector"},
		"spread selector": {spread(but(func(c *corev1.TopologySpreadConstraint) {
			c.LabelSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"a": "b c"}}
		})), "spec.topologySpreadConstraints[0].labelSelector.matchLabels"},
		"selector without terms": {affine(corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{}}}), "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms"},
		"expression key":         {expression("a b", "Exists"), inTerm + ".matchExpressions[0].key"},
		"expression operator":    {expression("a", "Equals", "b"), inTerm + ".matchExpressions[0].operator"},
		"In nothing":             {expression("a", "In"), inTerm + ".matchExpressions[0].values"},
		"In no label":            {expression("a", "NotIn", "ok", "b c"), inTerm + ".matchExpressions[0].values[1]"},
		"Exists with values":     {expression("a", "Exists", "b"), inTerm + ".matchExpressions[0].values"},
		"Gt two":                 {expression("a", "Gt", "1", "2"), inTerm + ".matchExpressions[0].values"},
		"field of nodes":         {byField("spec.unschedulable", "In", "b"), inTerm + ".matchFields[0].key"},
		"field operator":         {byField("metadata.name", "Exists"), inTerm + ".matchFields[0]"},
		"two names":              {byField("metadata.name", "In", "a", "b"), inTerm + ".matchFields[0]"},
		"weight": {affine(corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{PreferredDuringSchedulingIgnoredDuringExecution: []corev1.PreferredSchedulingTerm{{Weight: 101}}}}),
			"spec.affinity.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution[0].weight"},
		"weight of Pods": {affine(corev1.Affinity{PodAffinity: &corev1.PodAffinity{PreferredDuringSchedulingIgnoredDuringExecution: []corev1.WeightedPodAffinityTerm{{PodAffinityTerm: corev1.PodAffinityTerm{TopologyKey: "a"}}}}}),
			"spec.affinity.podAffinity.preferredDuringSchedulingIgnoredDuringExecution[0].weight"},
		"Pods of no topology": {apart(corev1.PodAffinityTerm{}), inApart + ".topologyKey"},
		"Pods of a namespace": {apart(corev1.PodAffinityTerm{TopologyKey: "a", Namespaces: []string{"ok", "A"}}), inApart + ".namespaces[1]"},
		"Pods by labels": {apart(corev1.PodAffinityTerm{TopologyKey: "a", LabelSelector: &metav1.LabelSelector{
			MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "a", Operator: "In"}},
		}}), inApart + ".labelSelector.matchExpressions[0].values"},
		"Pods by keys alone": {apart(corev1.PodAffinityTerm{TopologyKey: "a", MismatchLabelKeys: []string{"b"}}), inApart + ".labelSelector"},
		"labels of namespaces": {apart(corev1.PodAffinityTerm{TopologyKey: "a", NamespaceSelector: &metav1.LabelSelector{
			MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "a", Operator: "Near"}},
		}}), inApart + ".namespaceSelector.matchExpressions[0].operator"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := template.Default().Launcher(input(newVMI(tc.vmi)))
			wantError(t, err, tc.field, render.ErrInvalid)
		})
	}
	t.Run("a cluster's own selector", func(t *testing.T) {
		_, err := template.Default().Launcher(input(newVMI(), clusterSelector("a", "b c")))
		wantError(t, err, "Config.NodeSelectors[a]", render.ErrInvalid)
	})
	t.Run("what is strange but allowed", func(t *testing.T) {
		vmi := newVMI(tolerate(corev1.Toleration{Operator: "Exists"}), spread(good), affine(corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
			PreferredDuringSchedulingIgnoredDuringExecution: []corev1.PreferredSchedulingTerm{{Weight: 1, Preference: corev1.NodeSelectorTerm{
				MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "a", Operator: "In", Values: []string{"no label"}}},
			}}},
			RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{
				{MatchFields: []corev1.NodeSelectorRequirement{{Key: "metadata.name", Operator: "In", Values: []string{"n1"}}}},
			}},
		}}))
		launcher(t, input(vmi))
	})
}

func TestProbes_RejectedByAPIServer(t *testing.T) {
	get := func(g corev1.HTTPGetAction) v1.Probe { return v1.Probe{Handler: v1.Handler{HTTPGet: &g}} }
	dial := func(port intstr.IntOrString) v1.Probe {
		return v1.Probe{Handler: v1.Handler{TCPSocket: &corev1.TCPSocketAction{Port: port}}}
	}
	port := intstr.FromInt32(80)
	with := func(change func(*v1.Probe)) v1.Probe {
		p := dial(port)
		change(&p)
		return p
	}
	for name, tc := range map[string]struct {
		probe v1.Probe
		field string
	}{
		"no handler":          {v1.Probe{}, ""},
		"two handlers":        {with(func(p *v1.Probe) { p.GuestAgentPing = &v1.GuestAgentPing{} }), ""},
		"empty command":       {execProbe(1), ".exec.command"},
		"port 0":              {dial(intstr.FromInt32(0)), ".tcpSocket.port"},
		"port 65536":          {dial(intstr.FromInt32(65536)), ".tcpSocket.port"},
		"no port name":        {dial(intstr.FromString("")), ".tcpSocket.port"},
		"port name":           {get(corev1.HTTPGetAction{Port: intstr.FromString("A_")}), ".httpGet.port"},
		"scheme":              {get(corev1.HTTPGetAction{Port: port, Scheme: "FTP"}), ".httpGet.scheme"},
		"header":              {get(corev1.HTTPGetAction{Port: port, HTTPHeaders: []corev1.HTTPHeader{{Name: "a b"}}}), ".httpGet.httpHeaders[0].name"},
		"delay before start":  {with(func(p *v1.Probe) { p.InitialDelaySeconds = -11 }), ".initialDelaySeconds"},
		"delay out of range":  {with(func(p *v1.Probe) { p.InitialDelaySeconds = math.MaxInt32 }), ".initialDelaySeconds"},
		"timeout of an int32": {with(func(p *v1.Probe) { p.TimeoutSeconds = math.MaxInt32 }), ".timeoutSeconds"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := template.Default().Launcher(input(newVMI(func(vmi *v1.VirtualMachineInstance) { vmi.Spec.ReadinessProbe = &tc.probe })))
			wantError(t, err, "spec.readinessProbe"+tc.field, render.ErrInvalid)
			_, err = template.Default().Launcher(input(newVMI(func(vmi *v1.VirtualMachineInstance) { vmi.Spec.LivenessProbe = &tc.probe })))
			wantError(t, err, "spec.livenessProbe"+tc.field, render.ErrInvalid)
		})
	}
	_, err := template.Default().Launcher(input(newVMI(probed(with(func(p *v1.Probe) { p.SuccessThreshold = 2 })))))
	wantError(t, err, "spec.livenessProbe.successThreshold", render.ErrInvalid)
}
