// SPDX-License-Identifier: Apache-2.0

package templatectrl_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	v1 "kubevirt.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/virtloom/virtloom/template/render"
	"github.com/virtloom/virtloom/template/templatectrl"
)

func newScheme() (*runtime.Scheme, error) {
	s := runtime.NewScheme()
	return s, errors.Join(corev1.AddToScheme(s), v1.AddToScheme(s))
}

// guest returns the VirtualMachineInstance ns/guest.
func guest(change ...func(*v1.VirtualMachineInstance)) *v1.VirtualMachineInstance {
	g := &v1.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "guest", UID: "uid-1"}}
	for _, c := range change {
		c(g)
	}
	return g
}

func volume(name string, s v1.VolumeSource) func(*v1.VirtualMachineInstance) {
	return func(g *v1.VirtualMachineInstance) {
		g.Spec.Volumes = append(g.Spec.Volumes, v1.Volume{Name: name, VolumeSource: s})
	}
}

func claimed(name string) v1.VolumeSource {
	return v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{
		PersistentVolumeClaimVolumeSource: corev1.PersistentVolumeClaimVolumeSource{ClaimName: name}}}
}

func hooks(text string) func(*v1.VirtualMachineInstance) {
	return func(g *v1.VirtualMachineInstance) {
		g.Annotations = map[string]string{"hooks.kubevirt.io/hookSidecars": text}
	}
}

func networks(names ...string) func(*v1.VirtualMachineInstance) {
	return func(g *v1.VirtualMachineInstance) {
		for i, name := range names {
			g.Spec.Networks = append(g.Spec.Networks, v1.Network{Name: fmt.Sprint("net", i),
				NetworkSource: v1.NetworkSource{Multus: &v1.MultusNetwork{NetworkName: name}}})
		}
	}
}

func namespace(name string, labels map[string]string) *corev1.Namespace {
	return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}}
}

func pvc(namespace, name string, labels map[string]string) *corev1.PersistentVolumeClaim {
	return &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: labels}}
}

func configMap(namespace, name string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Data: map[string]string{"secret": "word"}}
}

func network(namespace, name string) *metav1.PartialObjectMetadata {
	return &metav1.PartialObjectMetadata{
		TypeMeta:   metav1.TypeMeta{APIVersion: "k8s.cni.cncf.io/v1", Kind: "NetworkAttachmentDefinition"},
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Annotations: map[string]string{"k8s.v1.cni.cncf.io/resourceName": "example.test/vf"}},
	}
}

// reader returns a client of a cluster with the objects.
func reader(t *testing.T, funcs interceptor.Funcs, objects ...client.Object) client.Client {
	t.Helper()
	s, err := newScheme()
	if err != nil {
		t.Fatal(err)
	}
	return fake.NewClientBuilder().WithScheme(s).WithObjects(objects...).WithInterceptorFuncs(funcs).Build()
}

// gateOff is a configuration in which no webhook adds the devices of networks.
var gateOff = render.Config{DisabledFeatureGates: []string{"ExternalNetResourceInjection"}}

// summary are the facts that the tests compare.
type summary struct{ claims, configMaps, networks, quotas []string }

func summarize(f render.Facts) summary {
	var t summary
	t.claims, t.configMaps = slices.Sorted(maps.Keys(f.Claims)), slices.Sorted(maps.Keys(f.ConfigMaps))
	t.networks = slices.Sorted(maps.Keys(f.NetworkAttachmentDefinitions))
	for _, q := range f.Quotas {
		t.quotas = append(t.quotas, q.Name)
	}
	return t
}

func TestFacts(t *testing.T) {
	long := strings.Repeat("long-", 20) + "name"
	for name, tt := range map[string]struct {
		vmi     *v1.VirtualMachineInstance
		config  render.Config
		objects []client.Object
		want    summary
	}{
		"nothing is asked for": {vmi: guest(), objects: []client.Object{pvc("ns", "other", nil), configMap("ns", "other"), network("ns", "other")}},
		"what exists is found, the rest stays out": {
			vmi:     guest(volume("a", claimed("there")), volume("b", claimed("missing"))),
			objects: []client.Object{pvc("ns", "there", nil), pvc("elsewhere", "missing", nil)}, want: summary{claims: []string{"there"}}},
		"persistent state is found by its label": {
			vmi: guest(), want: summary{claims: []string{"made-for-guest", "persistent-state-for-guest"}},
			objects: []client.Object{
				pvc("ns", "persistent-state-for-guest", nil),
				pvc("ns", "made-for-guest", map[string]string{"persistent-state-for": "guest"}),
				pvc("ns", "made-for-another", map[string]string{"persistent-state-for": "another"}),
				pvc("elsewhere", "made-for-a-namesake", map[string]string{"persistent-state-for": "guest"}),
			}},
		"a name too long for a label is on none": {
			vmi:     guest(func(g *v1.VirtualMachineInstance) { g.Name = long }),
			objects: []client.Object{pvc("ns", "persistent-state-for-"+long, nil)}, want: summary{claims: []string{"persistent-state-for-" + long}}},
		"quotas are those of the namespace": {
			vmi: guest(), want: summary{quotas: []string{"mine"}}, objects: []client.Object{
				&corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "mine"}},
				&corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Namespace: "elsewhere", Name: "theirs"}}}},
		"hooks name ConfigMaps": {
			vmi:     guest(hooks(`[{"configMap":{"name":"there"}},{"configMap":{"name":"missing"}},{"configMap":{"name":"no/name"}},{"configMap":{}}]`)),
			objects: []client.Object{configMap("ns", "there"), configMap("elsewhere", "missing")}, want: summary{configMaps: []string{"there"}}},
		"networks are looked after by a webhook": {
			vmi: guest(networks("blue")), objects: []client.Object{network("ns", "blue")}},
		"networks are looked up where there is none": {
			vmi: guest(networks("blue", "elsewhere/red", "ns/blue", "missing", "elsewhere/no/name", "/nowhere", "")), config: gateOff,
			objects: []client.Object{network("ns", "blue"), network("elsewhere", "red"), network("elsewhere", "missing")},
			want:    summary{networks: []string{"elsewhere/red", "ns/blue"}}},
		"networks of the Pod alone are not": {vmi: guest(func(g *v1.VirtualMachineInstance) { g.Spec.Networks = []v1.Network{*v1.DefaultPodNetwork()} }), config: gateOff},
	} {
		t.Run(name, func(t *testing.T) {
			g := &templatectrl.Gatherer{Client: reader(t, interceptor.Funcs{}, append(tt.objects, namespace("ns", map[string]string{"team": "a"}))...)}
			f, err := g.Facts(t.Context(), tt.vmi, tt.config, nil)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(map[string]string{"team": "a"}, f.NamespaceLabels); diff != "" {
				t.Errorf("labels (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tt.want, summarize(f), cmp.AllowUnexported(summary{})); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			for _, n := range f.NetworkAttachmentDefinitions {
				if n.Annotations["k8s.v1.cni.cncf.io/resourceName"] == "" {
					t.Errorf("of %s the annotations are missing", n.Name)
				}
			}
		})
	}
}

func TestTargetFacts(t *testing.T) {
	long := strings.Repeat("long-", 20) + "name"
	labels := func(name string) map[string]string { return map[string]string{"kubevirt.io/migrationName": name} }
	objects := []client.Object{
		namespace("ns", nil), pvc("ns", "disk", nil), pvc("ns", "named", nil),
		pvc("ns", "made-for-move", labels("move")), pvc("ns", "made-for-another", labels("another")), pvc("elsewhere", "made-there", labels("move")),
	}
	for name, tt := range map[string]struct {
		migration render.Migration
		want      []string
	}{
		"its claim has its label":      {render.Migration{Name: "move"}, []string{"disk", "made-for-move"}},
		"it names its claim":           {render.Migration{Name: "third", StateClaim: "named"}, []string{"disk", "named"}},
		"the claim does not exist yet": {render.Migration{Name: "third", StateClaim: "missing"}, []string{"disk"}},
		"it has no state":              {render.Migration{Name: "third"}, []string{"disk"}},
		"its name fits into no label":  {render.Migration{Name: long}, []string{"disk"}},
	} {
		t.Run(name, func(t *testing.T) {
			g := &templatectrl.Gatherer{Client: reader(t, interceptor.Funcs{}, objects...)}
			f, err := g.TargetFacts(t.Context(), guest(volume("a", claimed("disk"))), render.Config{}, tt.migration)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(summary{claims: tt.want}, summarize(f), cmp.AllowUnexported(summary{})); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestFacts_LiveMetadata(t *testing.T) {
	live := map[string]int{}
	spy := interceptor.Funcs{Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
		live[fmt.Sprintf("%T %s", o, o.GetObjectKind().GroupVersionKind().Kind)]++
		return c.Get(ctx, key, o, opts...)
	}}
	vmi := guest(hooks(`[{"configMap":{"name":"hook"}}]`), networks("blue"), volume("a", claimed("disk")))
	g := &templatectrl.Gatherer{
		Client: reader(t, interceptor.Funcs{}, namespace("ns", nil), pvc("ns", "disk", nil)),
		Live:   reader(t, spy, configMap("ns", "hook"), network("ns", "blue")),
	}
	f, err := g.Facts(t.Context(), vmi, gateOff, nil)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(summary{claims: []string{"disk"}, configMaps: []string{"hook"}, networks: []string{"ns/blue"}}, summarize(f), cmp.AllowUnexported(summary{})); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	want := map[string]int{"*v1.PartialObjectMetadata ConfigMap": 1, "*v1.PartialObjectMetadata NetworkAttachmentDefinition": 1}
	if diff := cmp.Diff(want, live); diff != "" {
		t.Errorf("live reads (-want +got):\n%s", diff)
	}
}

func TestGatherer_Errors(t *testing.T) {
	refused := apierrors.NewForbidden(schema.GroupResource{}, "", errors.New("not yours"))
	vmi := guest(volume("a", claimed("disk")), hooks(`[{"configMap":{"name":"hook"}}]`), networks("elsewhere/blue"))
	source := &corev1.Pod{Spec: corev1.PodSpec{NodeName: "node-a"}}
	facts := func(g *templatectrl.Gatherer) error {
		_, err := g.Facts(context.Background(), vmi, gateOff, nil)
		return err
	}
	target := func(g *templatectrl.Gatherer) error {
		_, err := g.TargetFacts(context.Background(), vmi, render.Config{}, render.Migration{Name: "move", StateClaim: "state"})
		return err
	}
	for name, tt := range map[string]struct {
		fails string // the kind that cannot be read
		list  bool   // nor listed, rather
		call  func(*templatectrl.Gatherer) error
		want  string
	}{
		"Namespace":       {"*v1.Namespace", false, facts, "Namespace ns:"},
		"ResourceQuota":   {"*v1.ResourceQuotaList", true, facts, "ResourceQuotas of namespace ns:"},
		"claim by name":   {"*v1.PersistentVolumeClaim", false, facts, "PersistentVolumeClaim ns/disk:"},
		"claims by label": {"*v1.PersistentVolumeClaimList", true, facts, "PersistentVolumeClaims of namespace ns with label persistent-state-for=guest:"},
		"target's facts":  {"*v1.Namespace", false, target, "Namespace ns:"},
		"ConfigMap":       {"ConfigMap", false, facts, "ConfigMap ns/hook:"},
		"network":         {"NetworkAttachmentDefinition", false, facts, "NetworkAttachmentDefinition elsewhere/blue:"},
		"KubeVirt": {"*v1.KubeVirtList", true, func(g *templatectrl.Gatherer) error {
			_, err := g.KubeVirt(context.Background())
			return err
		}, "list KubeVirt objects:"},
		"Node": {"*v1.Node", false, func(g *templatectrl.Gatherer) error {
			_, err := g.SourceNode(context.Background(), source)
			return err
		}, "Node node-a:"},
	} {
		t.Run(name, func(t *testing.T) {
			broken := interceptor.Funcs{
				Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
					if !tt.list && (fmt.Sprintf("%T", o) == tt.fails || o.GetObjectKind().GroupVersionKind().Kind == tt.fails) {
						return refused
					}
					return c.Get(ctx, key, o, opts...)
				},
				List: func(ctx context.Context, c client.WithWatch, o client.ObjectList, opts ...client.ListOption) error {
					if tt.list && fmt.Sprintf("%T", o) == tt.fails {
						return refused
					}
					return c.List(ctx, o, opts...)
				},
			}
			err := tt.call(&templatectrl.Gatherer{Client: reader(t, broken, namespace("ns", nil), pvc("ns", "disk", nil))})
			if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error %v, want one that says %q", err, tt.want)
			}
		})
	}
}

func TestFacts_NetworkAttachmentDefinitionsNotServed(t *testing.T) {
	unserved := interceptor.Funcs{Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
		if kind := o.GetObjectKind().GroupVersionKind(); kind.Kind == "NetworkAttachmentDefinition" {
			return &meta.NoKindMatchError{GroupKind: kind.GroupKind(), SearchedVersions: []string{kind.Version}}
		}
		return c.Get(ctx, key, o, opts...)
	}}
	g := &templatectrl.Gatherer{Client: reader(t, unserved, namespace("ns", nil))}
	f, err := g.Facts(t.Context(), guest(networks("blue")), gateOff, nil)
	if err != nil || len(f.NetworkAttachmentDefinitions) > 0 {
		t.Errorf("networks %v, error %v; want none", f.NetworkAttachmentDefinitions, err)
	}
}

func TestFacts_MissingNamespace(t *testing.T) {
	_, err := (&templatectrl.Gatherer{Client: reader(t, interceptor.Funcs{})}).Facts(t.Context(), guest(), render.Config{}, nil)
	if !apierrors.IsNotFound(err) || !strings.Contains(err.Error(), "Namespace ns") {
		t.Errorf("error %v, want that Namespace ns is not found", err)
	}
}

func TestKubeVirt_Oldest(t *testing.T) {
	at := func(namespace, name string, age time.Duration) *v1.KubeVirt {
		created := metav1.NewTime(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC).Add(-age))
		return &v1.KubeVirt{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, CreationTimestamp: created}}
	}
	for name, tt := range map[string]struct {
		objects []client.Object
		want    string
	}{
		"none":              {nil, ""},
		"one":               {[]client.Object{at("kubevirt", "a", 0)}, "kubevirt/a"},
		"the older":         {[]client.Object{at("a", "younger", 0), at("b", "older", time.Hour)}, "b/older"},
		"of the same age":   {[]client.Object{at("b", "a", 0), at("a", "b", 0)}, "a/b"},
		"of the same place": {[]client.Object{at("a", "b", 0), at("a", "a", 0)}, "a/a"},
	} {
		t.Run(name, func(t *testing.T) {
			kv, err := (&templatectrl.Gatherer{Client: reader(t, interceptor.Funcs{}, tt.objects...)}).KubeVirt(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			got := ""
			if kv != nil {
				got = client.ObjectKeyFromObject(kv).String()
			}
			if got != tt.want {
				t.Errorf("it is %q, want %q", got, tt.want)
			}
		})
	}
}

func TestSourceNode(t *testing.T) {
	on := func(node string) *corev1.Pod { return &corev1.Pod{Spec: corev1.PodSpec{NodeName: node}} }
	g := &templatectrl.Gatherer{Client: reader(t, interceptor.Funcs{}, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-a"}})}
	for name, tt := range map[string]struct {
		pod  *corev1.Pod
		want string
	}{
		"no Pod":               {nil, ""},
		"not scheduled":        {on(""), ""},
		"its Node is there":    {on("node-a"), "node-a"},
		"its Node was deleted": {on("node-b"), ""},
	} {
		t.Run(name, func(t *testing.T) {
			node, err := g.SourceNode(t.Context(), tt.pod)
			if err != nil {
				t.Fatal(err)
			}
			if got := node != nil; got != (tt.want != "") || got && node.Name != tt.want {
				t.Errorf("the Node is %+v, want %q", node, tt.want)
			}
		})
	}
}

func TestGatherer_ClientRequired(t *testing.T) {
	var g templatectrl.Gatherer
	_, facts := g.Facts(t.Context(), guest(), render.Config{}, nil)
	_, kubeVirt := g.KubeVirt(t.Context())
	_, node := g.SourceNode(t.Context(), nil)
	_, labels := g.NamespaceLabels(t.Context(), "ns")
	for name, err := range map[string]error{"Facts": facts, "KubeVirt": kubeVirt, "SourceNode": node, "NamespaceLabels": labels} {
		if err == nil || !strings.Contains(err.Error(), "Gatherer.Client is required") {
			t.Errorf("%s: error %v", name, err)
		}
	}
}
