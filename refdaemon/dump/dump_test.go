// SPDX-License-Identifier: Apache-2.0

package dump_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	v1 "kubevirt.io/api/core/v1"
	instancetypev1 "kubevirt.io/api/instancetype/v1beta1"
	migrationsv1 "kubevirt.io/api/migrations/v1alpha1"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/virtloom/virtloom/internal/readonly"
	"github.com/virtloom/virtloom/refdaemon/dump"
)

var at = time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)

func scheme(t *testing.T) *runtime.Scheme {
	t.Helper()
	s := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(s), v1.AddToScheme(s), instancetypev1.AddToScheme(s), migrationsv1.AddToScheme(s), cdiv1.AddToScheme(s)); err != nil {
		t.Fatal(err)
	}
	return s
}

func named(namespace, name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID(namespace + "/" + name)}
}

// cluster has a few objects; failing says which lists and gets are refused.
func cluster(t *testing.T, failing func(kind string) error, objects ...client.Object) client.Client {
	t.Helper()
	refused := func(c client.Client, o runtime.Object) error {
		gvk, err := c.GroupVersionKindFor(o)
		if err == nil && failing != nil {
			err = failing(strings.TrimSuffix(gvk.Kind, "List"))
		}
		return err
	}
	known := scheme(t)
	served := meta.NewDefaultRESTMapper(nil)
	for gvk := range known.AllKnownTypes() {
		served.Add(gvk, meta.RESTScopeNamespace)
	}
	return fake.NewClientBuilder().WithScheme(known).WithRESTMapper(served).WithObjects(objects...).WithInterceptorFuncs(interceptor.Funcs{
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
			if err := refused(c, list); err != nil {
				return err
			}
			return c.List(ctx, list, opts...)
		},
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
			if err := refused(c, o); err != nil {
				return err
			}
			return c.Get(ctx, key, o, opts...)
		},
	}).Build()
}

func take(t *testing.T, c client.Client) *dump.Dump {
	t.Helper()
	d, err := dump.Take(t.Context(), dump.Cluster{Client: c, Now: at})
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// again is the dump after it was written and read.
func again(t *testing.T, d *dump.Dump) *dump.Dump {
	t.Helper()
	var file bytes.Buffer
	if err := d.Write(&file); err != nil {
		t.Fatal(err)
	}
	read, err := dump.Read(&file, scheme(t))
	if err != nil {
		t.Fatal(err)
	}
	return read
}

func pod(namespace, name string, labels map[string]string) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: named(namespace, name)}
	p.Labels, p.Spec.NodeName = labels, "node-"+name
	return p
}

// both lets a test look at a dump as it was taken and as it was written and read.
func both(t *testing.T, d *dump.Dump, look func(t *testing.T, d *dump.Dump)) {
	t.Run("taken", func(t *testing.T) { look(t, d) })
	t.Run("read", func(t *testing.T) { look(t, again(t, d)) })
}

func TestDump_ReadsLikeCluster(t *testing.T) {
	d := take(t, cluster(t, nil,
		pod("b", "two", map[string]string{"app": "x"}), pod("a", "one", map[string]string{"app": "x"}), pod("a", "three", nil),
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "a", Labels: map[string]string{"team": "red"}}},
		&v1.VirtualMachine{ObjectMeta: named("a", "vm")},
	))
	both(t, d, func(t *testing.T, d *dump.Dump) {
		c := d.Client()
		err := d.IndexField(t.Context(), &corev1.Pod{}, "byNode", func(o client.Object) []string { return []string{o.(*corev1.Pod).Spec.NodeName} })
		if err != nil {
			t.Fatal(err)
		}
		for name, tt := range map[string]struct {
			opts []client.ListOption
			want []string
		}{
			"all":                 {nil, []string{"one", "three", "two"}},
			"of a namespace":      {[]client.ListOption{client.InNamespace("a")}, []string{"one", "three"}},
			"by label":            {[]client.ListOption{client.MatchingLabels{"app": "x"}}, []string{"one", "two"}},
			"by index":            {[]client.ListOption{client.MatchingFields{"byNode": "node-two"}}, []string{"two"}},
			"by both":             {[]client.ListOption{client.InNamespace("a"), client.MatchingFields{"byNode": "node-two"}}, nil},
			"of no such value":    {[]client.ListOption{client.MatchingFields{"byNode": "nowhere"}}, nil},
			"of no such name":     {[]client.ListOption{client.InNamespace("c")}, nil},
			"without deep copies": {[]client.ListOption{client.UnsafeDisableDeepCopy}, []string{"one", "three", "two"}},
		} {
			var pods corev1.PodList
			if err := c.List(t.Context(), &pods, tt.opts...); err != nil {
				t.Errorf("%s: %v", name, err)
			}
			var got []string
			for _, p := range pods.Items {
				got = append(got, p.Name)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("%s (-want +got):\n%s", name, diff)
			}
		}
		one := &corev1.Pod{}
		if err := c.Get(t.Context(), client.ObjectKey{Namespace: "a", Name: "one"}, one); err != nil || one.Spec.NodeName != "node-one" {
			t.Errorf("Pod %v, error %v", one, err)
		}
		one.Labels["app"] = "changed"
		if err := c.Get(t.Context(), client.ObjectKey{Namespace: "a", Name: "one"}, one); err != nil || one.Labels["app"] != "x" {
			t.Errorf("who has read has changed what others read: %v, error %v", one.Labels, err)
		}
		vm := &metav1.PartialObjectMetadata{}
		vm.SetGroupVersionKind(v1.VirtualMachineGroupVersionKind)
		if err := c.Get(t.Context(), client.ObjectKey{Namespace: "a", Name: "vm"}, vm); err != nil || vm.Name != "vm" {
			t.Errorf("metadata %v, error %v", vm, err)
		}
		ns := &metav1.PartialObjectMetadataList{}
		ns.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("NamespaceList"))
		if err := c.List(t.Context(), ns); err != nil || len(ns.Items) != 1 || ns.Items[0].Labels["team"] != "red" {
			t.Errorf("metadata %v, error %v", ns, err)
		}
		if namespaced, err := c.IsObjectNamespaced(one); err != nil || !namespaced {
			t.Errorf("a Pod has a namespace: %t, error %v", namespaced, err)
		}
	})
}

func TestDump_MissingKinds(t *testing.T) {
	forbidden := func(kind string) error {
		if kind == "Node" {
			return apierrors.NewForbidden(schema.GroupResource{Resource: "nodes"}, "", errors.New("no rights"))
		}
		return nil
	}
	d := take(t, cluster(t, forbidden, pod("a", "one", nil)))
	both(t, d, func(t *testing.T, d *dump.Dump) {
		c := d.Client()
		if err := c.Get(t.Context(), client.ObjectKey{Namespace: "a", Name: "two"}, &corev1.Pod{}); !apierrors.IsNotFound(err) {
			t.Errorf("a Pod that is not there: %v", err)
		}
		if err := c.List(t.Context(), &corev1.NodeList{}); err == nil || !strings.Contains(err.Error(), "kind Node are not in the dump: nodes is forbidden: no rights") {
			t.Errorf("a kind that could not be read: %v", err)
		}
		if err := c.List(t.Context(), &corev1.SecretList{}); !meta.IsNoMatchError(err) {
			t.Errorf("a kind that is not read: %v", err)
		}
		if err := c.List(t.Context(), &v1.VirtualMachineList{}); err != nil {
			t.Errorf("VirtualMachines: %v", err)
		}
		if err := c.Get(t.Context(), client.ObjectKey{Namespace: "a", Name: "one"}, &storagev1.StorageClass{}); !apierrors.IsNotFound(err) {
			t.Errorf("a kind without objects: %v", err)
		}
		for name, by := range map[string]client.ListOption{
			"an index that is none": client.MatchingFields{"byNode": "x"},
			"not a value":           client.MatchingFieldsSelector{Selector: fields.OneTermNotEqualSelector("byNode", "x")},
		} {
			if err := c.List(t.Context(), &corev1.PodList{}, by); err == nil || !strings.Contains(err.Error(), "no such index") {
				t.Errorf("%s: %v", name, err)
			}
		}
		if err := c.Create(t.Context(), pod("a", "new", nil)); !errors.Is(err, readonly.Err) {
			t.Errorf("a dump can be written to: %v", err)
		}
	})
}

func TestTake_ClusterUnreadable(t *testing.T) {
	broken := func(kind string) error {
		if kind == "Pod" {
			return errors.New("connection refused")
		}
		return nil
	}
	if _, err := dump.Take(t.Context(), dump.Cluster{Client: cluster(t, broken), Now: at}); err == nil || !strings.Contains(err.Error(), "kind Pod: connection refused") {
		t.Errorf("error %v", err)
	}
}

// What single guests name is read from the cluster once, and is in the file with what is not there.
func TestDump_ReferencedObjects(t *testing.T) {
	vmi := &v1.VirtualMachineInstance{ObjectMeta: named("ns", "guest")}
	vmi.Annotations = map[string]string{"hooks.kubevirt.io/hookSidecars": `[{"image":"i","configMap":{"name":"hook"}},{"image":"i","configMap":{"name":"gone"}}]`}
	config := &corev1.ConfigMap{ObjectMeta: named("ns", "hook"), Data: map[string]string{"password": "S3CRET"}}
	gets := 0
	count := func(kind string) error {
		if kind == "ConfigMap" {
			gets++
		}
		return nil
	}
	d := take(t, cluster(t, count, vmi, config, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "ns"}}))
	for range 2 {
		if err := d.Complete(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if gets != 2 {
		t.Errorf("ConfigMaps were read %d times, want 2", gets)
	}
	both(t, d, func(t *testing.T, d *dump.Dump) {
		for name, there := range map[string]bool{"hook": true, "gone": false} {
			o := &metav1.PartialObjectMetadata{}
			o.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("ConfigMap"))
			err := d.Get(t.Context(), client.ObjectKey{Namespace: "ns", Name: name}, o)
			if there && err != nil || !there && !apierrors.IsNotFound(err) {
				t.Errorf("%s: error %v", name, err)
			}
		}
	})
	if gets != 2 {
		t.Errorf("what is known was asked for again")
	}
}

func TestWriteFile_Atomic(t *testing.T) {
	d := take(t, cluster(t, nil, pod("a", "one", nil)))
	dir := t.TempDir()
	for _, name := range []string{"cluster.dump", "cluster.dump.gz"} {
		file := filepath.Join(dir, name)
		if err := d.WriteFile(file); err != nil {
			t.Fatal(err)
		}
		info, err := os.Stat(file)
		if err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: mode %v, error %v", name, info.Mode(), err)
		}
		read, err := dump.ReadFile(file, scheme(t))
		if err != nil || !read.TakenAt.Equal(at) {
			t.Fatalf("%s: taken at %v, error %v", name, read.TakenAt, err)
		}
		if diff := cmp.Diff(d.Kinds(), read.Kinds()); diff != "" {
			t.Errorf("%s (-taken +read):\n%s", name, diff)
		}
	}
	if err := d.WriteFile(filepath.Join(dir, "nowhere", "x")); err == nil {
		t.Error("there is no such folder")
	}
	if _, err := dump.ReadFile(filepath.Join(dir, "none"), scheme(t)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("error %v", err)
	}
	left, err := os.ReadDir(dir)
	if err != nil || len(left) != 2 {
		t.Errorf("left is %v, error %v", left, err)
	}
}

func TestRead_NotADump(t *testing.T) {
	d := take(t, cluster(t, nil, pod("a", "one", nil), pod("a", "two", nil)))
	var file bytes.Buffer
	if err := d.Write(&file); err != nil {
		t.Fatal(err)
	}
	whole := file.String()
	head, _, _ := strings.Cut(whole, "\n")
	for name, tt := range map[string]struct{ text, says string }{
		"nothing":                 {"", "its header"},
		"words":                   {"hello", "its header"},
		"another document":        {`{"apiVersion":"v1","kind":"Pod"}`, `apiVersion "v1", kind "Pod"`},
		"of a later version":      {strings.Replace(whole, "v1alpha1", "v9", 1), "dump.virtloom.dev/v9"},
		"cut off between objects": {whole[:strings.LastIndex(strings.TrimSpace(whole), "\n")], "expected 2 objects of kind Pod, got 1"},
		"cut off in an object":    {whole[:len(whole)-9], "unexpected EOF"},
		"no objects":              {head, "expected 2 objects"},
		"a kind of nobody's":      {head + "\n" + `{"apiVersion":"v1","kind":"Secret"}`, `kind "Secret", which the header does not name`},
		"a field of another type": {head + "\n" + `{"apiVersion":"v1","kind":"Pod","spec":[]}`, "kind Pod"},
		"not compressed":          {"\x1f\x8bnonsense", "gzip"},
	} {
		if _, err := dump.Read(strings.NewReader(tt.text), scheme(t)); !errors.Is(err, dump.ErrNotADump) || !strings.Contains(fmt.Sprint(err), tt.says) {
			t.Errorf("%s: error %v, want %q", name, err, tt.says)
		}
	}
}
