// SPDX-License-Identifier: Apache-2.0

package domainctrl_test

import (
	"context"
	"errors"
	"io/fs"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clocktesting "k8s.io/utils/clock/testing"
	v1 "kubevirt.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/virtloom/virtloom/domain/domainctrl"
	"github.com/virtloom/virtloom/domain/internal/domainfixture"
	"github.com/virtloom/virtloom/domain/workspace"
)

func TestClusterObjects_Read(t *testing.T) {
	scheme := runtime.NewScheme()
	if err := corev1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	meta := metav1.ObjectMeta{Namespace: "ns", Name: "x"}
	cluster := fake.NewClientBuilder().WithScheme(scheme).WithObjects(
		&corev1.ConfigMap{ObjectMeta: meta, Data: map[string]string{"a": "b"}, BinaryData: map[string][]byte{"c": {0}}},
		&corev1.Secret{ObjectMeta: meta, Data: map[string][]byte{"s": []byte("t")}}).Build()
	o := domainctrl.ClusterObjects{Reader: cluster}
	cm, err := o.ConfigMap(t.Context(), "ns", "x")
	if want := (map[string][]byte{"a": []byte("b"), "c": {0}}); err != nil || !cmp.Equal(want, cm) {
		t.Errorf("ConfigMap %v, %v", cm, err)
	}
	secret, err := o.Secret(t.Context(), "ns", "x")
	if err != nil || string(secret["s"]) != "t" {
		t.Errorf("Secret %v, %v", secret, err)
	}
	if _, err := o.Secret(t.Context(), "other", "x"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a missing Secret: %v", err)
	}
	refused := errors.New("refused")
	o.Reader = interceptor.NewClient(cluster, interceptor.Funcs{
		Get: func(context.Context, client.WithWatch, client.ObjectKey, client.Object, ...client.GetOption) error {
			return refused
		},
	})
	if _, err := o.ConfigMap(t.Context(), "ns", "x"); !errors.Is(err, refused) || errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a refused ConfigMap: %v", err)
	}
	refused = error(apierrors.NewForbidden(corev1.Resource("secrets"), "x", errors.New("request 17")))
	if _, err := o.Secret(t.Context(), "ns", "x"); !errors.Is(err, fs.ErrPermission) || strings.Contains(err.Error(), "request 17") {
		t.Errorf("a Secret that the node may not read: %v", err)
	}
}

// counting counts lists and lets them fail.
type counting struct {
	client.Reader
	lists int
	err   error
}

func (c *counting) List(ctx context.Context, l client.ObjectList, o ...client.ListOption) error {
	c.lists++
	if c.err != nil {
		return c.err
	}
	return c.Reader.List(ctx, l, o...)
}

func kubevirt(name string, age time.Duration, emulation bool) *v1.KubeVirt {
	kv := &v1.KubeVirt{ObjectMeta: metav1.ObjectMeta{Namespace: "kubevirt", Name: name, CreationTimestamp: metav1.NewTime(time.Unix(1e9, 0).Add(-age))}}
	kv.Spec.Configuration.DeveloperConfiguration = &v1.DeveloperConfiguration{UseEmulation: emulation}
	return kv
}

func settings(t *testing.T, objects ...client.Object) (*domainctrl.ClusterSettings, *counting, *clocktesting.FakePassiveClock) {
	t.Helper()
	scheme := runtime.NewScheme()
	domainfixture.Must(t, v1.AddToScheme(scheme))
	reader := &counting{Reader: fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).Build()}
	now := clocktesting.NewFakePassiveClock(time.Unix(1e9, 0))
	return &domainctrl.ClusterSettings{Reader: reader, Clock: now}, reader, now
}

func TestClusterSettings_OldestKubeVirt(t *testing.T) {
	for name, tt := range map[string]struct {
		objects []client.Object
		want    bool
	}{
		"none":               {nil, false},
		"one":                {[]client.Object{kubevirt("a", 0, true)}, true},
		"configures nothing": {[]client.Object{&v1.KubeVirt{ObjectMeta: metav1.ObjectMeta{Namespace: "kubevirt", Name: "a"}}}, false},
		"two":                {[]client.Object{kubevirt("a", 0, true), kubevirt("b", time.Hour, false)}, false},
		"two, the other way": {[]client.Object{kubevirt("a", 0, false), kubevirt("b", time.Hour, true)}, true},
	} {
		t.Run(name, func(t *testing.T) {
			s, _, _ := settings(t, tt.objects...)
			if got, err := s.AllowEmulation(t.Context()); err != nil || got != tt.want {
				t.Errorf("emulation is allowed: %t, %v; want %t", got, err, tt.want)
			}
		})
	}
}

func TestClusterSettings_Cached(t *testing.T) {
	s, reader, now := settings(t, kubevirt("a", 0, true))
	reader.err = errors.New("not now")
	if _, err := s.AllowEmulation(t.Context()); !errors.Is(err, reader.err) {
		t.Errorf("nothing has been read: %v, want the error of the API server", err)
	}
	reader.err = nil
	ask := func(lists int) {
		t.Helper()
		for range 3 {
			if got, err := s.AllowEmulation(t.Context()); err != nil || !got {
				t.Errorf("emulation is allowed: %t, %v", got, err)
			}
		}
		if reader.lists != lists {
			t.Errorf("%d listings, want %d", reader.lists, lists)
		}
	}
	ask(2)
	now.SetTime(now.Now().Add(domainctrl.DefaultSettingsKept))
	ask(3)
	now.SetTime(now.Now().Add(domainctrl.DefaultSettingsKept))
	reader.err = errors.New("not now")
	ask(6) // the last answer is kept, and each call retries
}

func TestVolumeClaims_InPods(t *testing.T) {
	scheme := runtime.NewScheme()
	if err := corev1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	mode := corev1.PersistentVolumeBlock
	claim := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "c"},
		Spec:       corev1.PersistentVolumeClaimSpec{VolumeName: "pv", VolumeMode: &mode, AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany}},
		Status: corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimBound,
			Capacity: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}},
	}
	pending := claim.DeepCopy()
	pending.Name, pending.Status.Phase = "pending", corev1.ClaimPending
	c := domainctrl.VolumeClaims{Reader: fake.NewClientBuilder().WithScheme(scheme).WithObjects(claim, pending).WithStatusSubresource().Build(), InPods: true}
	if got, err := c.Locate(t.Context(), "ns", "c"); err != nil || got != (workspace.Claim{Block: true, Shared: true, Bytes: 1 << 30}) {
		t.Errorf("%+v, %v", got, err)
	}
	for _, name := range []string{"pending", "none"} {
		if got, err := c.Locate(t.Context(), "ns", name); err == nil {
			t.Errorf("%s: %+v", name, got)
		}
	}
	c.InPods = false
	if got, err := c.Locate(t.Context(), "ns", "c"); err == nil {
		t.Errorf("without its volume: %+v", got)
	}
}
