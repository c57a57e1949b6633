// SPDX-License-Identifier: Apache-2.0

package vmi

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"
	v1 "kubevirt.io/api/core/v1"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"
)

func TestFilesystemOverhead(t *testing.T) {
	said := &cdiv1.FilesystemOverhead{Global: "0.1", StorageClass: map[string]cdiv1.Percent{"fast": "0.2"}}
	plain := func(*corev1.PersistentVolumeClaim) {}
	for name, tc := range map[string]struct {
		overhead *cdiv1.FilesystemOverhead
		claim    func(*corev1.PersistentVolumeClaim)
		want     v1.Percent
	}{
		"98 not one CDI":                 {nil, ofClass("fast"), "0.055"},
		"98 not one CDI, a block device": {nil, asBlock, "0.055"},
		"98 block device":                {said, asBlock, "0"},
		"98 no class":                    {said, plain, "0.1"},
		"98 unknown class":               {said, ofClass("slow"), "0.1"},
		"98 known class":                 {said, ofClass("fast"), "0.2"},
		"98 CDI does not say":            {&cdiv1.FilesystemOverhead{}, ofClass("fast"), "0.055"},
	} {
		t.Run(name, func(t *testing.T) {
			k := newShelf(v1.Running).pvc("c").claim("c", tc.claim)
			k.Storage.Overhead = tc.overhead
			got, _ := settle(t, k, nil)
			if o := got[0].PersistentVolumeClaimInfo.FilesystemOverhead; o == nil || *o != tc.want {
				t.Errorf("overhead is %v, want %s", o, tc.want)
			}
		})
	}
}

func TestClaimInfo(t *testing.T) {
	quantity := func(s string) corev1.ResourceList { return corev1.ResourceList{"storage": resource.MustParse(s)} }
	k := newShelf(v1.Running).dv("c").claim("c", asBlock, func(c *corev1.PersistentVolumeClaim) {
		c.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany}
		c.Spec.Resources.Requests, c.Status.Capacity = quantity("1Gi"), quantity("2Gi")
	})
	got, _ := settle(t, k, nil)
	want := &v1.PersistentVolumeClaimInfo{
		ClaimName: "c", AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany}, VolumeMode: ptr.To(corev1.PersistentVolumeBlock),
		Requests: quantity("1Gi"), Capacity: quantity("2Gi"), FilesystemOverhead: ptr.To[v1.Percent]("0.055"),
	}
	if diff := cmp.Diff(want, got[0].PersistentVolumeClaimInfo); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	k.VMI.Status.VolumeStatus, k.Storage.Claims = got, nil
	if got, _ = settle(t, k, nil); !cmp.Equal(want, got[0].PersistentVolumeClaimInfo) {
		t.Errorf("the claim is gone, its info is %+v", got[0].PersistentVolumeClaimInfo)
	}
}

func TestPreallocated(t *testing.T) {
	for text, want := range map[string]bool{
		"": false,
		"cdi.kubevirt.io/storage.preallocation=true":        true,
		"cdi.kubevirt.io/storage.preallocation=false":       false,
		"example.com/storage.thick-provisioned=true":        true,
		"example.com/storage.thick-provisioned.really=true": true,
		"storage.thick-provisioned=true":                    false,
		"cdi.kubevirt.io/storage.other=true":                false,
	} {
		t.Run(text, func(t *testing.T) {
			c := &corev1.PersistentVolumeClaim{}
			if key, value, found := strings.Cut(text, "="); found {
				c.Annotations = map[string]string{key: value}
			}
			if got := preallocated(c); got != want {
				t.Errorf("got %v, want %v", got, want)
			}
		})
	}
}

func TestVolumeStatus_BackendStorage(t *testing.T) {
	const own = "persistent-state-for-this-vm"
	mine := labelledFor("guest")
	shared := func(c *corev1.PersistentVolumeClaim) {
		c.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany}
	}
	about := func(claim string) func(*v1.VolumeStatus) {
		return func(e *v1.VolumeStatus) {
			e.PersistentVolumeClaimInfo = &v1.PersistentVolumeClaimInfo{ClaimName: claim}
		}
	}
	for name, tc := range map[string]struct {
		shelf *shelf
		want  []string
	}{
		"not needed":                           {newShelf(v1.Running).claim("x", mine), nil},
		"not needed any more":                  {newShelf(v1.Running).claim("x", mine).guest(entry(own, "", about("x"))), nil},
		"new":                                  {newShelf(v1.Running).guest(keepsTPM).claim("x", mine, shared), []string{own + " x ReadWriteMany"}},
		"known, replaced by a migration":       {newShelf(v1.Running).guest(keepsTPM).claim("x", mine, born(1)).claim("y", mine, born(2), shared).guest(entry(own, "", about("x"))), []string{own + " y ReadWriteMany"}},
		"97 reported by the name of its claim": {newShelf(v1.Running).guest(keepsTPM).claim("x", mine).guest(entry("x", "", about("x"))), []string{own + " x "}},
		"97 reported by both names":            {newShelf(v1.Running).guest(keepsTPM).claim("x", mine).guest(entry("x", "", about("x"), atTarget("vda"))).guest(entry(own, "", about("x"))), []string{own + " x "}},
		"97 a volume has the claim's name":     {newShelf(v1.Running).guest(keepsTPM).pvc("x").claim("x", mine).guest(entry("x", "", about("x"))), []string{own + " x ", "x" + " x "}},
		"claim is not known for a while":       {newShelf(v1.Running).guest(keepsTPM).guest(entry(own, "", about("x"))), []string{own + " x "}},
		"claim is not known and never was":     {newShelf(v1.Running).guest(keepsTPM), nil},
		"97 entry that says nothing beside":    {newShelf(v1.Running).guest(keepsTPM).claim("x", mine).guest(entry("x", "")), []string{own + " x "}},
	} {
		t.Run(name, func(t *testing.T) {
			got, events := settle(t, tc.shelf, nil)
			var said []string
			for _, e := range got {
				mode := ""
				if m := e.PersistentVolumeClaimInfo.AccessModes; len(m) > 0 {
					mode = string(m[0])
				}
				said = append(said, e.Name+" "+e.PersistentVolumeClaimInfo.ClaimName+" "+mode)
			}
			if diff := cmp.Diff(tc.want, said); diff != "" || events != nil {
				t.Errorf("events %v, -want +got:\n%s", events, diff)
			}
		})
	}
}
