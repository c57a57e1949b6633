// SPDX-License-Identifier: Apache-2.0

package rbac_test

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	v1 "kubevirt.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/virtloom/virtloom/internal/rig"
)

// kind is one that guests are made from; spec is such an object's, with labels or annotations of the guest at the path.
type kind struct {
	group, version, name, spec string
	path                       []string
}

var templates = []kind{
	{"kubevirt.io", "v1", "VirtualMachine", `{"runStrategy":"Halted","template":{"spec":{"domain":{"devices":{}}}}}`, []string{"spec", "template", "metadata", "labels"}},
	{"kubevirt.io", "v1", "VirtualMachine", `{"runStrategy":"Halted","template":{"spec":{"domain":{"devices":{}}}}}`, []string{"spec", "template", "metadata", "annotations"}},
	{"kubevirt.io", "v1", "VirtualMachineInstanceReplicaSet", `{"selector":{},"template":{"spec":{"domain":{"devices":{}}}}}`, []string{"spec", "template", "metadata", "annotations"}},
	{"pool.kubevirt.io", "v1beta1", "VirtualMachinePool",
		`{"selector":{},"virtualMachineTemplate":{"spec":{"runStrategy":"Halted","template":{"spec":{"domain":{"devices":{}}}}}}}`,
		[]string{"spec", "virtualMachineTemplate", "spec", "template", "metadata", "annotations"}},
	{"instancetype.kubevirt.io", "v1beta1", "VirtualMachineInstancetype", `{"cpu":{"guest":1},"memory":{"guest":"1Gi"}}`, []string{"spec", "annotations"}},
	{"instancetype.kubevirt.io", "v1beta1", "VirtualMachinePreference", `{}`, []string{"spec", "annotations"}},
}

// define makes sure of a kind, which is KubeVirt's and need not be installed.
func (w *world) define(t *testing.T, k kind) {
	t.Helper()
	must(t, apiextensionsv1.AddToScheme(w.scheme))
	plural := strings.ToLower(k.name) + "s"
	must(t, client.IgnoreAlreadyExists(w.Create(t.Context(), &apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{Name: plural + "." + k.group},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: k.group, Scope: apiextensionsv1.NamespaceScoped,
			Names: apiextensionsv1.CustomResourceDefinitionNames{Plural: plural, Kind: k.name},
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{
				Name: k.version, Served: true, Storage: true, Schema: &apiextensionsv1.CustomResourceValidation{
					OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{Type: "object", XPreserveUnknownFields: ptr.To(true)},
				},
			}},
		},
	})))
	await(t, k.name+" to be served", func() bool { return w.try(t, rig.UserAdmin, madeFrom(t, k, "{}")) == nil })
}

// madeFrom is an object that guests with these labels or annotations are made from.
func madeFrom(t *testing.T, k kind, keys string) *unstructured.Unstructured {
	t.Helper()
	o := object(t, `{"apiVersion":"`+k.group+"/"+k.version+`","kind":"`+k.name+`","metadata":{"namespace":"tenant","name":"made"},"spec":`+k.spec+`}`)
	must(t, unstructured.SetNestedField(o.Object, object(t, `{"kind":"x","keys":`+keys+`}`).Object["keys"], k.path...))
	return o
}

// testForgedTemplates has controllers forge guests, in the name of a user.
func (w *world) testForgedTemplates(t *testing.T) {
	for _, k := range templates {
		forged := map[string]string{`{"virtloom.dev/handoff":"{}"}`: "virtloom.dev/handoff", `{"kubevirt.io/nodeName":"sim-0"}`: "kubevirt.io/nodeName"}
		if k.path[len(k.path)-1] == "annotations" {
			forged = map[string]string{`{"virtloom.dev/handoff":"{}"}`: "virtloom.dev/handoff", `{"kubevirt.io/create-migration-target":"true"}`: "kubevirt.io/create-migration-target"}
		}
		t.Run(k.name+" "+k.path[len(k.path)-1], func(t *testing.T) {
			check(t, w.try(t, person, madeFrom(t, k, `{"kubevirt.io/domain":"web"}`)), "")
			for keys, denied := range forged {
				check(t, w.try(t, person, madeFrom(t, k, keys)), "labels and annotations of guests: "+denied)
				check(t, w.try(t, virtController, madeFrom(t, k, keys)), denied)
			}
			was := madeFrom(t, k, `{"virtloom.dev/handoff":"{}"}`)
			w.create(t, was)
			c := w.as(t, w.by(person))
			patch := func(text string) error {
				return c.Patch(t.Context(), was.DeepCopy(), client.RawPatch(types.MergePatchType, []byte(text)), client.DryRunAll)
			}
			check(t, patch(`{"metadata":{"labels":{"app":"x"}}}`), "") // what was there before the policy is no reason
			changed := madeFrom(t, k, `{"virtloom.dev/handoff":"other"}`)
			changed.SetResourceVersion(was.GetResourceVersion())
			check(t, c.Update(t.Context(), changed, client.DryRunAll), "virtloom.dev/handoff")
		})
	}
}

func pod(name string, edits ...func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: tenant, Name: name, Labels: map[string]string{"app": "web"}},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "virtloom.test/c:1"}}},
	}
	for _, edit := range edits {
		edit(p)
	}
	return p
}

func podLabel(key, value string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { metav1.SetMetaDataLabel(&p.ObjectMeta, key, value) }
}

func podAnnotation(key, value string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { metav1.SetMetaDataAnnotation(&p.ObjectMeta, key, value) }
}

func owner(apiVersion, kind, name string, controller bool) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.OwnerReferences = append(p.OwnerReferences, metav1.OwnerReference{APIVersion: apiVersion, Kind: kind, Name: name, UID: "u", Controller: &controller})
	}
}

const ownerDenied = "metadata.ownerReferences: only the control plane"

// testForgedPods creates Pods that look like those of guests.
func (w *world) testForgedPods(t *testing.T) {
	for name, tt := range map[string]struct {
		edit   func(*corev1.Pod)
		denied string
	}{
		"a plain one":                    {edit: podLabel("tier", "front")},
		"a part of KubeVirt":             {edit: podLabel(v1.AppLabel, "virt-api")},
		"of a ReplicaSet":                {edit: owner("apps/v1", "ReplicaSet", "r", true)},
		"of a Pod":                       {edit: owner("v1", "Pod", "driver", true)},
		"that goes with a guest":         {edit: owner("kubevirt.io/v1", "VirtualMachineInstance", "g", false)},
		"a launcher":                     {edit: podLabel(v1.AppLabel, "virt-launcher"), denied: "metadata.labels: kubevirt.io: reserved for Pods of guests"},
		"an attachment":                  {edit: podLabel(v1.AppLabel, "hotplug-disk"), denied: "metadata.labels: kubevirt.io: "},
		"created by a guest":             {edit: podLabel(v1.CreatedByLabel, "u"), denied: "metadata.labels: kubevirt.io/created-by"},
		"of a domain":                    {edit: podLabel("kubevirt.io/domain", "g"), denied: "metadata.labels: kubevirt.io/domain"},
		"of a migration":                 {edit: podLabel(v1.MigrationJobLabel, "m"), denied: "metadata.labels: kubevirt.io/migrationJobUID"},
		"with a label of ours":           {edit: podLabel("virtloom.dev/any", ""), denied: "metadata.labels: virtloom.dev/any"},
		"annotated with a domain":        {edit: podAnnotation(v1.DomainAnnotation, "g"), denied: "metadata.annotations: kubevirt.io/domain"},
		"annotated with a migration":     {edit: podAnnotation(v1.MigrationJobNameAnnotation, "m"), denied: "metadata.annotations: kubevirt.io/migrationJobName"},
		"annotated with a lease":         {edit: podAnnotation("virtloom.dev/handoff", "{}"), denied: "metadata.annotations: virtloom.dev/handoff"},
		"controlled by a guest":          {edit: owner("kubevirt.io/v1", "VirtualMachineInstance", "g", true), denied: ownerDenied},
		"controlled by a guest of alpha": {edit: owner("kubevirt.io/v1alpha3", "VirtualMachineInstance", "g", true), denied: ownerDenied},
		"controlled by a launcher":       {edit: owner("v1", "Pod", "virt-launcher-g-abcde", true), denied: ownerDenied},
	} {
		t.Run(name, func(t *testing.T) {
			p := pod("created", tt.edit)
			for _, who := range []string{person, lookalike, neighbour, virtHandler} {
				check(t, w.try(t, who, p), tt.denied)
			}
			for _, who := range []string{rig.UserAdmin, virtController, rig.UserController} {
				check(t, w.try(t, who, p), "")
			}
		})
	}
	t.Run("a binding", func(t *testing.T) {
		p := pod("bound")
		w.create(t, p)
		b := &corev1.Binding{ObjectMeta: metav1.ObjectMeta{Namespace: tenant, Name: p.Name, Annotations: map[string]string{v1.DomainAnnotation: "g"}}, Target: corev1.ObjectReference{Kind: "Node", Name: nodeA}}
		err := w.as(t, w.by(person)).SubResource("binding").Create(t.Context(), p.DeepCopy(), b, client.DryRunAll)
		check(t, err, "metadata.annotations: kubevirt.io/domain")
	})
}

// launcher is the Pod of a guest.
func launcher(p *corev1.Pod) {
	for _, edit := range []func(*corev1.Pod){
		podLabel(v1.AppLabel, "virt-launcher"), podLabel(v1.CreatedByLabel, "u"), podLabel("kubevirt.io/domain", "g"),
		podAnnotation(v1.DomainAnnotation, "g"), owner("kubevirt.io/v1", "VirtualMachineInstance", "g", true),
	} {
		edit(p)
	}
}

// testForgedPodChanges has a user change Pods into those of guests, and those of guests into others.
func (w *world) testForgedPodChanges(t *testing.T) {
	guest := bare("g") // a Pod whose owner is not there is collected
	w.create(t, guest)
	for name, tt := range map[string]struct {
		was           func(*corev1.Pod)
		patch, denied string
	}{
		"labels and annotations of its own":   {was: launcher, patch: `{"metadata":{"labels":{"app":"db"},"annotations":{"example.com/note":"x"}}}`},
		"a finalizer":                         {was: launcher, patch: `{"metadata":{"finalizers":["example.com/x"]}}`},
		"no longer a launcher":                {was: launcher, patch: `{"metadata":{"labels":{"kubevirt.io":null}}}`, denied: "metadata.labels: kubevirt.io: "},
		"a launcher by another name":          {was: launcher, patch: `{"metadata":{"labels":{"kubevirt.io":"mine"}}}`, denied: "metadata.labels: kubevirt.io: "},
		"of another guest":                    {was: launcher, patch: `{"metadata":{"labels":{"kubevirt.io/created-by":"v"}}}`, denied: "metadata.labels: kubevirt.io/created-by"},
		"without labels":                      {was: launcher, patch: `{"metadata":{"labels":null}}`, denied: "metadata.labels: "},
		"of a migration":                      {was: launcher, patch: `{"metadata":{"labels":{"kubevirt.io/migrationJobUID":"m"}}}`, denied: "kubevirt.io/migrationJobUID"},
		"of another domain":                   {was: launcher, patch: `{"metadata":{"annotations":{"kubevirt.io/domain":"h"}}}`, denied: "metadata.annotations: kubevirt.io/domain"},
		"with devices of networks":            {was: launcher, patch: `{"metadata":{"annotations":{"kubevirt.io/network-info":"{}"}}}`, denied: "kubevirt.io/network-info"},
		"without owner":                       {was: launcher, patch: `{"metadata":{"ownerReferences":null}}`, denied: ownerDenied},
		"not controlled":                      {was: launcher, patch: `{"metadata":{"ownerReferences":[{"apiVersion":"kubevirt.io/v1","kind":"VirtualMachineInstance","name":"g","uid":"UID"}]}}`, denied: ownerDenied},
		"owned by another guest":              {was: launcher, patch: `{"metadata":{"ownerReferences":[{"apiVersion":"kubevirt.io/v1","kind":"VirtualMachineInstance","name":"h","uid":"v","controller":true}]}}`, denied: ownerDenied},
		"which no longer keeps its owner":     {was: launcher, patch: `{"metadata":{"ownerReferences":[{"apiVersion":"kubevirt.io/v1","kind":"VirtualMachineInstance","name":"g","uid":"UID","controller":true,"blockOwnerDeletion":false}]}}`},
		"a plain one becomes a launcher":      {was: podLabel("a", "b"), patch: `{"metadata":{"labels":{"kubevirt.io":"virt-launcher"}}}`, denied: "metadata.labels: kubevirt.io: "},
		"a plain one becomes a guest's":       {was: podLabel("a", "b"), patch: `{"metadata":{"ownerReferences":[{"apiVersion":"kubevirt.io/v1","kind":"VirtualMachineInstance","name":"g","uid":"UID","controller":true}]}}`, denied: ownerDenied},
		"a plain one gets labels of its own":  {was: podLabel("a", "b"), patch: `{"metadata":{"labels":{"kubevirt.io":"mine"}}}`},
		"a part of KubeVirt is called others": {was: podLabel(v1.AppLabel, "virt-api"), patch: `{"metadata":{"labels":{"kubevirt.io":null}}}`},
	} {
		t.Run(name, func(t *testing.T) {
			// A name of its own: whoever plays the kubelet may be late, and go by it.
			p := pod("changed-"+strings.ReplaceAll(strings.ToLower(strings.ReplaceAll(name, "'", "")), " ", "-"), tt.was)
			for i := range p.OwnerReferences {
				p.OwnerReferences[i].UID = guest.UID
			}
			tt.patch = strings.ReplaceAll(tt.patch, `"uid":"UID"`, `"uid":"`+string(guest.UID)+`"`)
			w.create(t, p)
			for who, denied := range map[string]string{person: tt.denied, collector: tt.denied, virtHandler: tt.denied, virtController: "", rig.UserAdmin: "", rig.UserController: ""} {
				patch := client.RawPatch(types.MergePatchType, []byte(tt.patch))
				check(t, w.as(t, w.by(who)).Patch(t.Context(), p.DeepCopy(), patch, client.DryRunAll), denied)
			}
			if strings.HasPrefix(tt.denied, "metadata.labels") {
				patch := client.RawPatch(types.MergePatchType, []byte(tt.patch))
				check(t, w.as(t, w.by(person)).Status().Patch(t.Context(), p.DeepCopy(), patch, client.DryRunAll), tt.denied)
			}
			must(t, w.as(t, w.by(person)).Delete(t.Context(), p.DeepCopy(), client.DryRunAll))
		})
	}
}

func migrationOf(name string, edits ...func(*v1.VirtualMachineInstanceMigration)) *v1.VirtualMachineInstanceMigration {
	m := &v1.VirtualMachineInstanceMigration{
		ObjectMeta: metav1.ObjectMeta{Namespace: tenant, Name: name, Finalizers: []string{v1.VirtualMachineInstanceMigrationFinalizer}},
		Spec:       v1.VirtualMachineInstanceMigrationSpec{VMIName: "guest"},
	}
	for _, edit := range edits {
		edit(m)
	}
	return m
}

// testForgedMigrations has a user write what controllers note on migrations.
func (w *world) testForgedMigrations(t *testing.T) {
	check(t, w.try(t, person, migrationOf("created")), "")
	for _, key := range []string{"virtloom.dev/guest-uid", "virtloom.dev/update", "virtloom.dev/circumstances"} {
		m := migrationOf("created", func(m *v1.VirtualMachineInstanceMigration) { metav1.SetMetaDataAnnotation(&m.ObjectMeta, key, "x") })
		check(t, w.try(t, person, m), key)
		check(t, w.try(t, virtController, m), "")
	}
	m := migrationOf("changed", func(m *v1.VirtualMachineInstanceMigration) {
		metav1.SetMetaDataAnnotation(&m.ObjectMeta, "virtloom.dev/guest-uid", "u")
	})
	w.create(t, m)
	for _, tt := range []struct{ patch, denied string }{
		{`{"metadata":{"labels":{"app":"x"},"annotations":{"example.com/x":"y"}}}`, ""},
		{`{"metadata":{"annotations":{"virtloom.dev/guest-uid":"v"}}}`, "virtloom.dev/guest-uid"},
		{`{"metadata":{"annotations":{"virtloom.dev/guest-uid":null}}}`, "virtloom.dev/guest-uid"},
		{`{"metadata":{"labels":{"virtloom.dev/x":"y"}}}`, "virtloom.dev/x"},
		{`{"metadata":{"finalizers":null}}`, "the finalizer of a migration"},
	} {
		patch := client.RawPatch(types.MergePatchType, []byte(tt.patch))
		check(t, w.as(t, w.by(person)).Patch(t.Context(), m.DeepCopy(), patch, client.DryRunAll), tt.denied)
		check(t, w.as(t, w.by(rig.UserController)).Patch(t.Context(), m.DeepCopy(), patch, client.DryRunAll), "")
	}
	phase := client.RawPatch(types.MergePatchType, []byte(`{"status":{"phase":"Succeeded"}}`))
	check(t, w.as(t, w.by(person)).Status().Patch(t.Context(), m.DeepCopy(), phase), "status: phase: written by the control plane alone")
	check(t, w.as(t, w.by(rig.UserController)).Status().Patch(t.Context(), m.DeepCopy(), phase), "")
	check(t, w.as(t, w.by(person)).Status().Patch(t.Context(), m.DeepCopy(), client.RawPatch(types.MergePatchType, []byte(`{"status":null}`))), "status: phase")
}
