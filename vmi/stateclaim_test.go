// SPDX-License-Identifier: Apache-2.0

package vmi

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	v1 "kubevirt.io/api/core/v1"
)

func keepsTPM(g *v1.VirtualMachineInstance) {
	g.Spec.Domain.Devices.TPM = &v1.TPMDevice{Persistent: ptr.To(true)}
}

func tracks(s v1.ChangedBlockTrackingState) func(*v1.VirtualMachineInstance) {
	return func(g *v1.VirtualMachineInstance) {
		g.Status.ChangedBlockTracking = &v1.ChangedBlockTrackingStatus{State: s}
	}
}

// machine returns a reference to a VirtualMachine.
func machine(uid types.UID) metav1.OwnerReference {
	return metav1.OwnerReference{APIVersion: "kubevirt.io/v1", Kind: "VirtualMachine", Name: "guest", UID: uid, Controller: ptr.To(true), BlockOwnerDeletion: ptr.To(true)}
}

func ofMachine(g *v1.VirtualMachineInstance) {
	g.OwnerReferences = []metav1.OwnerReference{machine("uid-vm")}
}

func labelledFor(guest string) func(*corev1.PersistentVolumeClaim) {
	return func(c *corev1.PersistentVolumeClaim) { c.Labels = map[string]string{"persistent-state-for": guest} }
}

func born(seconds int64) func(*corev1.PersistentVolumeClaim) {
	return func(c *corev1.PersistentVolumeClaim) { c.CreationTimestamp = metav1.Unix(seconds, 0) }
}

func dying(c *corev1.PersistentVolumeClaim) {
	c.DeletionTimestamp = &metav1.Time{Time: time.Unix(100, 0)}
}

func waitsForConsumer(c *storagev1.StorageClass) {
	c.VolumeBindingMode = ptr.To(storagev1.VolumeBindingWaitForFirstConsumer)
}

func TestNeedsState(t *testing.T) {
	tpm := func(d v1.TPMDevice) func(*v1.VirtualMachineInstance) {
		return func(g *v1.VirtualMachineInstance) { g.Spec.Domain.Devices.TPM = &d }
	}
	firmware := func(f v1.Firmware) func(*v1.VirtualMachineInstance) {
		return func(g *v1.VirtualMachineInstance) { g.Spec.Domain.Firmware = &f }
	}
	const tpmField, efiField, blocksField = "spec.domain.devices.tpm.persistent", "spec.domain.firmware.bootloader.efi.persistent", "status.changedBlockTracking"
	for name, tc := range map[string]struct {
		change func(*v1.VirtualMachineInstance)
		want   string
	}{
		"nothing":                       {func(*v1.VirtualMachineInstance) {}, ""},
		"a TPM":                         {tpm(v1.TPMDevice{}), ""},
		"32 a persistent TPM":           {keepsTPM, tpmField},
		"a TPM that forgets":            {tpm(v1.TPMDevice{Persistent: ptr.To(false)}), ""},
		"a persistent TPM, taken out":   {tpm(v1.TPMDevice{Enabled: ptr.To(false), Persistent: ptr.To(true)}), ""},
		"firmware, no bootloader":       {firmware(v1.Firmware{}), ""},
		"firmware, no EFI":              {firmware(v1.Firmware{Bootloader: &v1.Bootloader{}}), ""},
		"EFI":                           {firmware(v1.Firmware{Bootloader: &v1.Bootloader{EFI: &v1.EFI{}}}), ""},
		"32 persistent EFI":             {firmware(v1.Firmware{Bootloader: &v1.Bootloader{EFI: &v1.EFI{Persistent: ptr.To(true)}}}), efiField},
		"EFI that forgets":              {firmware(v1.Firmware{Bootloader: &v1.Bootloader{EFI: &v1.EFI{Persistent: ptr.To(false)}}}), ""},
		"32 blocks, Initializing":       {tracks(v1.ChangedBlockTrackingInitializing), blocksField},
		"32 blocks, Enabled":            {tracks(v1.ChangedBlockTrackingEnabled), blocksField},
		"34 blocks, Disabled":           {tracks(v1.ChangedBlockTrackingDisabled), ""},
		"blocks, after the next start":  {tracks(v1.ChangedBlockTrackingPendingRestart), ""},
		"blocks, nothing said":          {tracks(v1.ChangedBlockTrackingUndefined), ""},
		"blocks, the gate is closed":    {tracks(v1.ChangedBlockTrackingFGDisabled), ""},
		"32 a TPM comes before the map": {func(g *v1.VirtualMachineInstance) { keepsTPM(g); tracks(v1.ChangedBlockTrackingEnabled)(g) }, tpmField},
	} {
		t.Run(name, func(t *testing.T) {
			g := newShelf(pending).VMI
			tc.change(g)
			if field, needed := needsState(g); field != tc.want || needed != (tc.want != "") {
				t.Errorf("needed %v by %q, want %q", needed, field, tc.want)
			}
		})
	}
}

func TestStateClaims(t *testing.T) {
	mine := labelledFor("guest")
	for name, tc := range map[string]struct {
		shelf *shelf
		want  []string
	}{
		"none":                      {newShelf(pending), nil},
		"labelled":                  {newShelf(pending).claim("x", mine), []string{"x"}},
		"another's":                 {newShelf(pending).claim("x", labelledFor("other")), nil},
		"being deleted":             {newShelf(pending).claim("x", mine, dying), nil},
		"by its name":               {newShelf(pending).claim("persistent-state-for-guest"), []string{"persistent-state-for-guest"}},
		"by its name, deleted":      {newShelf(pending).claim("persistent-state-for-guest", dying), nil},
		"by both":                   {newShelf(pending).claim("persistent-state-for-guest", mine), []string{"persistent-state-for-guest"}},
		"label before name":         {newShelf(pending).claim("persistent-state-for-guest", born(9)).claim("x", mine, born(1)), []string{"x", "persistent-state-for-guest"}},
		"newest first":              {newShelf(pending).claim("a", mine, born(1)).claim("b", mine, born(3)).claim("c", mine, born(2)), []string{"b", "c", "a"}},
		"of one second, by name":    {newShelf(pending).claim("b", mine, born(1)).claim("a", mine, born(1)), []string{"a", "b"}},
		"a hole in the map":         {&shelf{Snapshot{VMI: newShelf(pending).VMI, Storage: Storage{Claims: map[string]*corev1.PersistentVolumeClaim{"x": nil}}}}, nil},
		"a guest and claim of none": {newShelf(pending).claim("x").guest(func(g *v1.VirtualMachineInstance) { g.Name = "" }), nil},
	} {
		t.Run(name, func(t *testing.T) {
			var got []string
			for _, c := range stateClaims(tc.shelf.Snapshot) {
				got = append(got, c.Name)
			}
			if !slices.Equal(got, tc.want) {
				t.Errorf("got %v, want %v", got, tc.want)
			}
		})
	}
}

func TestStateClaim_Existing(t *testing.T) {
	mine, unbound := labelledFor("guest"), inClaimPhase(corev1.ClaimPending)
	keeps := func() *shelf { return newShelf(pending).guest(keepsTPM).guest(ofMachine) }
	const probe, unready, create = "FailedBackendStorageProbe", "BackendStorageNotReady", "FailedBackendStorageCreate"
	for name, tc := range map[string]struct {
		shelf *shelf
		want  string
		says  string
	}{
		"bound":                               {keeps().claim("x", mine), "", ""},
		"bound, its class is gone":            {keeps().claim("x", mine, ofClass("fast")), "", ""},
		"bound, found by its name":            {keeps().claim("persistent-state-for-guest"), "", ""},
		"pending":                             {keeps().claim("x", mine, unbound, ofClass("fast")).class("fast"), unready + " storage", "not Bound"},
		"pending, without class":              {keeps().claim("x", mine, unbound), unready + " storage", "not Bound"},
		"just created":                        {keeps().claim("x", mine, inClaimPhase(""), ofClass("fast")).class("fast"), unready + " storage", "not Bound"},
		"pending until there is a Pod":        {keeps().claim("x", mine, unbound, ofClass("late")).class("late", waitsForConsumer), "", ""},
		"35 Lost":                             {keeps().claim("x", mine, inClaimPhase(corev1.ClaimLost)), probe + " user", "Lost"},
		"35 Lost, of a class that waits":      {keeps().claim("x", mine, inClaimPhase(corev1.ClaimLost), ofClass("late")).class("late", waitsForConsumer), probe + " user", "Lost"},
		"35 pending, its class is gone":       {keeps().claim("x", mine, unbound, ofClass("fast")), probe + " user", "StorageClass fast"},
		"35 a block device":                   {keeps().claim("x", mine, asBlock), probe + " user", "volumeMode"},
		"somebody's, who made it":             {keeps().claim("x", mine, ownedBy(metav1.OwnerReference{APIVersion: "v1", Kind: "ConfigMap", Name: "c", UID: "c"})), "", ""},
		"of the machine":                      {keeps().claim("x", mine, ownedBy(machine("uid-vm"))), "", ""},
		"35 of a machine that is gone":        {keeps().claim("x", mine, ownedBy(machine("uid-before"))), probe + " user", "VirtualMachine ns/guest of UID uid-before"},
		"35 of another guest":                 {keeps().claim("x", mine, ownedBy(metav1.OwnerReference{APIVersion: "kubevirt.io/v1", Kind: "VirtualMachineInstance", Name: "guest", UID: "before"})), probe + " user", "label"},
		"35 the newest is another's":          {keeps().claim("x", mine, born(1)).claim("y", mine, born(2), ownedBy(machine("uid-before"))), probe + " user", "ns/y"},
		"the newest counts":                   {keeps().claim("x", mine, born(1), inClaimPhase(corev1.ClaimLost)).claim("y", mine, born(2)), "", ""},
		"being deleted":                       {keeps().claim("x", mine, dying), create + " storage", "being deleted"},
		"being deleted, found by its name":    {keeps().claim("persistent-state-for-guest", dying), create + " storage", "being deleted"},
		"the name is another claim's":         {keeps().claim(StateClaimName(keeps().VMI)), create + " user", "label"},
		"the name is that of another's claim": {keeps().claim(StateClaimName(keeps().VMI), labelledFor("other")), create + " user", "delete it"},
	} {
		t.Run(name, func(t *testing.T) {
			w, a := stateClaim(tc.shelf.class("standard", isDefault(defaultClass, 1)).Snapshot, "")
			if a != nil {
				t.Fatalf("does %s", a)
			}
			var got string
			if w != nil {
				got = fmt.Sprintf("%s %s", w.Reason, w.Responsible)
			}
			if got != tc.want {
				t.Fatalf("waits for %q, want %q", got, tc.want)
			}
			if w != nil && (!strings.Contains(w.Message, tc.says) || !strings.HasPrefix(w.Message, "spec.domain.devices.tpm.persistent: ") ||
				!strings.HasPrefix(w.Object, "PersistentVolumeClaim ns/") || w.Until == "") {
				t.Errorf("wait %+v does not say %q", w, tc.says)
			}
		})
	}
}

func TestStateClaim_NotNeeded(t *testing.T) {
	const name = "persistent-state-for-guest-x"
	mine := labelledFor("guest")
	itself := metav1.OwnerReference{APIVersion: "kubevirt.io/v1", Kind: "VirtualMachineInstance", Name: "guest", UID: "uid-guest"}
	forgets := func() *shelf {
		return newShelf(pending).guest(ofMachine).guest(tracks(v1.ChangedBlockTrackingDisabled))
	}
	for title, tc := range map[string]struct {
		shelf *shelf
		want  string
	}{
		"nothing there":                 {forgets(), ""},
		"34 of the machine":             {forgets().claim(name, mine, ownedBy(machine("uid-vm"))), name},
		"34 of the guest":               {forgets().claim(name, mine, ownedBy(itself)), name},
		"34 found by its name":          {forgets().claim("persistent-state-for-guest", ownedBy(machine("uid-vm"))), "persistent-state-for-guest"},
		"34 not bound":                  {forgets().claim(name, mine, ownedBy(itself), inClaimPhase(corev1.ClaimPending)), name},
		"a user's, labelled":            {forgets().claim(name, mine), ""},
		"a user's, newer than the own":  {forgets().claim("kept", mine, born(2)).claim(name, mine, born(1), ownedBy(itself)), name},
		"of a machine that is gone":     {forgets().claim(name, mine, ownedBy(machine("uid-before"))), ""},
		"owner without UID":             {forgets().claim(name, mine, ownedBy(metav1.OwnerReference{Kind: "VirtualMachine", Name: "guest"})), ""},
		"another guest's":               {forgets().claim(name, labelledFor("other"), ownedBy(machine("uid-vm"))), ""},
		"being deleted":                 {forgets().claim(name, mine, dying, ownedBy(itself)), ""},
		"a volume of the guest":         {forgets().pvc(name).claim(name, mine, ownedBy(itself)), ""},
		"a utility volume of the guest": {forgets().claim(name, mine, ownedBy(itself)).guest(utility("u", name)), ""},
	} {
		t.Run(title, func(t *testing.T) {
			w, a := stateClaim(tc.shelf.Snapshot, "")
			if w != nil {
				t.Fatalf("waits for %+v, which holds the Pod back", w)
			}
			var got string
			if a != nil {
				got = a.Claim.Name
				if a.Verb != DeleteClaim || a.Fault != "Failed deleting backend storage" {
					t.Errorf("does %s with fault %q", a, a.Fault)
				}
			}
			if got != tc.want {
				t.Errorf("deletes %q, want %q", got, tc.want)
			}
		})
	}
}

func utility(name, claim string) func(*v1.VirtualMachineInstance) {
	return func(g *v1.VirtualMachineInstance) {
		u := v1.UtilityVolume{Name: name}
		u.ClaimName = claim
		g.Spec.UtilityVolumes = append(g.Spec.UtilityVolumes, u)
	}
}
