// SPDX-License-Identifier: Apache-2.0

package vmi

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/utils/ptr"
	v1 "kubevirt.io/api/core/v1"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"

	"github.com/virtloom/virtloom/handoff"
)

func isDefault(annotation string, born int64) func(*storagev1.StorageClass) {
	return func(c *storagev1.StorageClass) {
		c.Annotations, c.CreationTimestamp = map[string]string{annotation: "true"}, metav1.Unix(born, 0)
	}
}

func TestNewStateClaim(t *testing.T) {
	k := newShelf(pending).guest(ofMachine).guest(tracks(v1.ChangedBlockTrackingInitializing)).class("fast", isDefault(defaultClass, 1))
	before := k.VMI.DeepCopy()
	w, a := stateClaim(k.Snapshot, "")
	if a == nil || a.Verb != CreateClaim || a.Fault != "FailedBackendStorageCreate" || a.Why == "" {
		t.Fatalf("32 does %+v", a)
	}
	if w == nil || w.Responsible != handoff.ByController || w.Condition == "" || !strings.HasSuffix(w.Object, a.Claim.Name) {
		t.Errorf("32 waits for %+v: the Pod must come in a later pass, and nothing is out of order", w)
	}
	owner := machine("uid-vm")
	owner.BlockOwnerDeletion = nil // no permission on the owner is required
	want := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: a.Claim.Name,
			Labels:          map[string]string{"persistent-state-for": "guest", "cdi.kubevirt.io/applyStorageProfile": "true"},
			OwnerReferences: []metav1.OwnerReference{owner}},
		Spec: corev1.PersistentVolumeClaimSpec{
			StorageClassName: ptr.To("fast"), VolumeMode: ptr.To(corev1.PersistentVolumeFilesystem),
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources:   corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{"storage": resource.MustParse("522Mi")}},
		},
	}
	if diff := cmp.Diff(want, a.Claim); diff != "" {
		t.Errorf("32, 128 claim (-want +got):\n%s", diff)
	}
	*a.Claim.OwnerReferences[0].Controller = false
	if diff := cmp.Diff(before, k.VMI); diff != "" {
		t.Errorf("the claim shares memory with the guest:\n%s", diff)
	}

	alone := newShelf(pending).guest(keepsTPM).class("fast", isDefault(defaultClass, 1))
	_, a = stateClaim(alone.Snapshot, "")
	if got := a.Claim.Spec.Resources.Requests.Storage().String(); got != "10Mi" {
		t.Errorf("size is %s, want 10Mi", got)
	}
	if !metav1.IsControlledBy(a.Claim, alone.VMI) || len(a.Claim.OwnerReferences) != 1 {
		t.Errorf("128 owners are %v, want the guest", a.Claim.OwnerReferences)
	}
	if found := stateClaims(alone.claim(a.Claim.Name, func(c *corev1.PersistentVolumeClaim) { *c = *a.Claim }).Snapshot); len(found) != 1 {
		t.Errorf("the claim is not found again: %v", found)
	}
}

func TestStateClaimName(t *testing.T) {
	name := func(change ...func(*v1.VirtualMachineInstance)) string {
		k := newShelf(pending)
		for _, f := range change {
			k.guest(f)
		}
		return StateClaimName(k.VMI)
	}
	anew := func(g *v1.VirtualMachineInstance) { g.UID = "uid-next" }
	long := func(g *v1.VirtualMachineInstance) { g.Name = strings.Repeat("g", 63) }
	kept := func(g *v1.VirtualMachineInstance) {
		g.OwnerReferences = []metav1.OwnerReference{{Kind: "Keeper", UID: "k"}}
	}
	for title, tc := range map[string]struct {
		a, b string
		same bool
	}{
		"6 the next guest of a machine":        {name(ofMachine), name(ofMachine, anew), true},
		"6 the next guest without a machine":   {name(), name(anew), false},
		"6 of a machine, and without":          {name(), name(ofMachine), false},
		"6 the next guest of another owner":    {name(kept), name(kept, anew), true},
		"6 of a machine of the same name":      {name(ofMachine), name(func(g *v1.VirtualMachineInstance) { g.OwnerReferences = []metav1.OwnerReference{machine("uid-2")} }), false},
		"6 the controller, not just any owner": {name(ofMachine), name(kept, func(g *v1.VirtualMachineInstance) { g.OwnerReferences = append(g.OwnerReferences, machine("uid-vm")) }), true},
	} {
		t.Run(title, func(t *testing.T) {
			if (tc.a == tc.b) != tc.same {
				t.Errorf("%s and %s", tc.a, tc.b)
			}
			for _, n := range []string{tc.a, name(long)} {
				if problems := validation.IsDNS1123Subdomain(n); len(problems) > 0 || !strings.HasPrefix(n, "persistent-state-for-g") {
					t.Errorf("%s: %v", n, problems)
				}
			}
		})
	}
}

func TestNewStateClaim_Blocked(t *testing.T) {
	keeps := func() *shelf { return newShelf(pending).guest(keepsTPM) }
	for title, tc := range map[string]struct {
		shelf      *shelf
		configured string
		says       string
	}{
		"127 no classes":                    {keeps(), "", "is-default-virt-class"},
		"127 no default":                    {keeps().class("fast"), "", "vmStateStorageClass"},
		"127 the one configured is missing": {keeps().class("fast", isDefault(defaultClass, 1)), "slow", "StorageClass slow"},
		"127 a default that is none":        {keeps().class("fast", func(c *storagev1.StorageClass) { c.Annotations = map[string]string{defaultClass: "false"} }), "", "annotate"},
		"a name too long for a label": {keeps().class("fast", isDefault(defaultClass, 1)).guest(func(g *v1.VirtualMachineInstance) {
			g.Name = strings.Repeat("g", 64)
		}), "", "metadata.name"},
	} {
		t.Run(title, func(t *testing.T) {
			w, a := stateClaim(tc.shelf.Snapshot, tc.configured)
			if a != nil || w == nil {
				t.Fatalf("does %v, waits for %v", a, w)
			}
			if w.Reason != "FailedBackendStorageCreate" || w.Responsible != handoff.ByUser || !strings.Contains(w.Message, tc.says) || w.Until == "" || w.Object == "" {
				t.Errorf("wait %+v does not say %q", w, tc.says)
			}
		})
	}
}

func TestStateClass_AccessModes(t *testing.T) {
	offer := func(mode *corev1.PersistentVolumeMode, access ...corev1.PersistentVolumeAccessMode) *cdiv1.StorageProfile {
		return &cdiv1.StorageProfile{Status: cdiv1.StorageProfileStatus{ClaimPropertySets: []cdiv1.ClaimPropertySet{{VolumeMode: mode, AccessModes: access}}}}
	}
	files, block := ptr.To(corev1.PersistentVolumeFilesystem), ptr.To(corev1.PersistentVolumeBlock)
	const many, one, readers = corev1.ReadWriteMany, corev1.ReadWriteOnce, corev1.ReadOnlyMany
	both := func(c *storagev1.StorageClass) {
		c.Annotations = map[string]string{defaultClass: "true", virtDefaultClass: "true"}
	}
	for title, tc := range map[string]struct {
		classes    *shelf
		configured string
		profile    *cdiv1.StorageProfile
		want       string
	}{
		"127 configured wins":             {newShelf("").class("a", isDefault(virtDefaultClass, 1)).class("b"), "b", nil, "b ReadWriteMany"},
		"127 virtual machines' wins":      {newShelf("").class("a", isDefault(defaultClass, 9)).class("b", isDefault(virtDefaultClass, 1)), "", nil, "b ReadWriteOnce"},
		"127 the cluster's":               {newShelf("").class("a").class("b", isDefault(defaultClass, 1)), "", nil, "b ReadWriteOnce"},
		"127 the newest of several":       {newShelf("").class("a", isDefault(defaultClass, 1)).class("b", isDefault(defaultClass, 2)).class("c", isDefault(defaultClass, 1)), "", nil, "b ReadWriteOnce"},
		"127 the first of one second":     {newShelf("").class("b", isDefault(defaultClass, 1)).class("a", isDefault(defaultClass, 1)).class("c", isDefault(defaultClass, 1)), "", nil, "a ReadWriteOnce"},
		"127 default for both":            {newShelf("").class("a", both), "", nil, "a ReadWriteOnce"},
		"32 profile offers one":           {newShelf("").class("a", both), "", offer(files, one), "a ReadWriteOnce"},
		"32 profile offers both":          {newShelf("").class("a", both), "", offer(files, one, many), "a ReadWriteMany"},
		"profile without mode":            {newShelf("").class("a", both), "", offer(nil, many), "a ReadWriteMany"},
		"many for block devices only":     {newShelf("").class("a", both), "", offer(block, many), "a ReadWriteOnce"},
		"configured, offers one":          {newShelf("").class("a"), "a", offer(files, one), "a ReadWriteOnce"},
		"configured, offers but readers":  {newShelf("").class("a"), "a", offer(files, readers), "a ReadWriteMany"},
		"by default, offers but readers":  {newShelf("").class("a", both), "", offer(files, readers), "a ReadWriteOnce"},
		"configured, profile not written": {newShelf("").class("a"), "a", &cdiv1.StorageProfile{}, "a ReadWriteMany"},
	} {
		t.Run(title, func(t *testing.T) {
			k := tc.classes.guest(keepsTPM)
			if tc.profile != nil {
				k.Storage.Profiles = map[string]*cdiv1.StorageProfile{"a": tc.profile}
			}
			_, a := stateClaim(k.Snapshot, tc.configured)
			if a == nil {
				t.Fatal("creates no claim")
			}
			if got := *a.Claim.Spec.StorageClassName + " " + string(a.Claim.Spec.AccessModes[0]); got != tc.want {
				t.Errorf("got %s, want %s", got, tc.want)
			}
		})
	}
}
