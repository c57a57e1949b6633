// SPDX-License-Identifier: Apache-2.0

package vmi

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	v1 "kubevirt.io/api/core/v1"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"

	"github.com/virtloom/virtloom/handoff"
)

const (
	pending    = v1.Pending
	unconsumed = cdiv1.WaitForFirstConsumer
	succeeded  = cdiv1.Succeeded
)

// wordsOf returns the machine-read parts of a wait; empty for nil.
func wordsOf(w *Wait) string {
	if w == nil {
		return ""
	}
	return fmt.Sprintf("%s %s %s", w.Reason, w.Object, w.Responsible)
}

func ephemeralSource(claim string) v1.VolumeSource {
	return v1.VolumeSource{Ephemeral: &v1.EphemeralVolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim}}}
}

func TestClaimsExist(t *testing.T) {
	refused := func(d *cdiv1.DataVolume) {
		d.Status.Conditions = []cdiv1.DataVolumeCondition{{Type: cdiv1.DataVolumeBound, Status: corev1.ConditionFalse, Reason: "ErrExceededQuota", Message: "no room"}}
	}
	for name, tc := range map[string]struct {
		shelf *shelf
		want  string
		says  []string
	}{
		"no volumes, no maps":              {newShelf(pending), "", nil},
		"17 claim of a PVC is missing":     {newShelf(pending).pvc("a"), "FailedPvcNotFound PersistentVolumeClaim ns/a user", []string{"spec.volumes[0].persistentVolumeClaim.claimName", "create it"}},
		"17 claim of a DV is missing":      {newShelf(pending).dv("a"), "FailedPvcNotFound PersistentVolumeClaim ns/a user", []string{"spec.volumes[0].dataVolume.name", "create the DataVolume"}},
		"17 the DV has yet to make it":     {newShelf(pending).dv("a").dataVolume("a", cdiv1.Pending, refused), "FailedPvcNotFound PersistentVolumeClaim ns/a storage", []string{"CDI", "no room"}},
		"17 the second is missing":         {newShelf(pending).pvc("a").claim("a").pvc("b"), "FailedPvcNotFound PersistentVolumeClaim ns/b user", []string{"spec.volumes[1]"}},
		"claim of an ephemeral volume":     {newShelf(pending).volume("e", ephemeralSource("a")), "FailedPvcNotFound PersistentVolumeClaim ns/a user", []string{"ephemeral"}},
		"an ephemeral volume of nothing":   {newShelf(pending).volume("e", v1.VolumeSource{Ephemeral: &v1.EphemeralVolumeSource{}}), "", nil},
		"a volume of nothing":              {newShelf(pending).volume("e", v1.VolumeSource{}), "", nil},
		"no name":                          {newShelf(pending).pvc(""), "FailedPvcNotFound PersistentVolumeClaim ns/ user", []string{"Required value"}},
		"plugged later":                    {newShelf(pending).volume("h", pvcSource("h", true)).hotDV("i"), "", nil},
		"19 nobody fills it":               {newShelf(pending).pvc("a").claim("a", inClaimPhase(corev1.ClaimPending)), "", nil},
		"filled before, DV is another's":   {newShelf(pending).dv("a").claim("a").dataVolume("a", cdiv1.Pending), "", nil},
		"owned by what looks like a DV":    {newShelf(pending).pvc("a").claim("a", ownedBy(metav1.OwnerReference{APIVersion: "example.com/v1", Kind: "DataVolume", Name: "a", Controller: ptr.To(true)})), "", nil},
		"owned, not controlled":            {newShelf(pending).pvc("a").claim("a", ownedBy(metav1.OwnerReference{APIVersion: "cdi.kubevirt.io/v1beta1", Kind: "DataVolume", Name: "a"})), "", nil},
		"its DV is gone":                   {newShelf(pending).pvc("a").claim("a", filledBy("x")), "FailedDataVolumeImport DataVolume ns/x user", []string{"spec.volumes[0]", "owner reference"}},
		"its DV is gone, another has come": {newShelf(pending).pvc("a").filled("a", succeeded, func(d *cdiv1.DataVolume) { d.UID = "new" }), "FailedDataVolumeImport DataVolume ns/a user", nil},
		"its DV is there":                  {newShelf(pending).pvc("a").filled("a", cdiv1.Pending), "", nil},
	} {
		t.Run(name, func(t *testing.T) {
			got := claimsExist(tc.shelf.Snapshot)
			if words := wordsOf(got); words != tc.want {
				t.Errorf("waits for %q, want %q", words, tc.want)
			}
			for _, part := range tc.says {
				if got != nil && !strings.Contains(got.Message, part) {
					t.Errorf("message %q does not say %q", got.Message, part)
				}
			}
		})
	}
}

func TestImportsDone(t *testing.T) {
	at := func(progress cdiv1.DataVolumeProgress) func(*cdiv1.DataVolume) {
		return func(d *cdiv1.DataVolume) { d.Status.Progress = progress }
	}
	broken := func(d *cdiv1.DataVolume) {
		d.Status.Conditions = []cdiv1.DataVolumeCondition{{Type: cdiv1.DataVolumeRunning, Status: corev1.ConditionFalse, Reason: "Error", Message: "no such host"}}
	}
	for name, tc := range map[string]struct {
		shelf *shelf
		by    handoff.Responsible
		says  []string
	}{
		"no volumes, no maps":             {newShelf(pending), "", nil},
		"19 nobody fills it":              {newShelf(pending).pvc("a").claim("a", inClaimPhase(corev1.ClaimPending)), "", nil},
		"20 pending":                      {newShelf(pending).dv("a").filled("a", cdiv1.Pending), handoff.ByStorage, []string{"spec.volumes[0].dataVolume.name", "DataVolume ns/a", "Pending"}},
		"20 without a phase":              {newShelf(pending).dv("a").filled("a", cdiv1.PhaseUnset), handoff.ByStorage, []string{"(none)"}},
		"20 in progress, of a PVC":        {newShelf(pending).pvc("a").filled("a", cdiv1.ImportInProgress, at("45.3%")), handoff.ByStorage, []string{"ImportInProgress (45.3%)"}},
		"20 progress is not known":        {newShelf(pending).pvc("a").filled("a", cdiv1.ImportInProgress, at("N/A")), handoff.ByStorage, []string{"ImportInProgress;"}},
		"20 in trouble":                   {newShelf(pending).dv("a").filled("a", cdiv1.ImportInProgress, broken), handoff.ByStorage, []string{"no such host"}},
		"20 waits for an upload":          {newShelf(pending).dv("a").filled("a", cdiv1.UploadReady), handoff.ByUser, []string{"upload"}},
		"20 paused":                       {newShelf(pending).dv("a").filled("a", cdiv1.Paused), handoff.ByUser, []string{"checkpoints"}},
		"28 failed":                       {newShelf(pending).dv("a").filled("a", cdiv1.Failed), handoff.ByUser, []string{"delete and recreate it"}},
		"22 waits for a consumer":         {newShelf(pending).dv("a").filled("a", unconsumed), "", nil},
		"25 succeeded":                    {newShelf(pending).dv("a").filled("a", succeeded), "", nil},
		"31 filled by its first Pod":      {newShelf(pending).dv("a").filled("a", cdiv1.PendingPopulation), "", nil},
		"plugged later":                   {newShelf(pending).hotDV("a").filled("a", cdiv1.Pending), "", nil},
		"the second":                      {newShelf(pending).dv("a").filled("a", succeeded).dv("b").filled("b", cdiv1.Pending), handoff.ByStorage, []string{"spec.volumes[1]"}},
		"its DV is gone":                  {newShelf(pending).dv("a").claim("a", filledBy("a")), "", nil},
		"filled before, DV is of nothing": {newShelf(pending).dv("a").claim("a").dataVolume("a", cdiv1.Pending), "", nil},
	} {
		t.Run(name, func(t *testing.T) {
			w := importsDone(tc.shelf.Snapshot)
			if w == nil {
				if tc.by != "" {
					t.Fatal("does not wait")
				}
				return
			}
			if w.Responsible != tc.by || w.Condition != v1.VirtualMachineInstanceDataVolumesReady || w.Reason != "NotAllDVsReady" || !strings.HasPrefix(w.Object, "DataVolume ns/") {
				t.Errorf("waits %+v, want by %q", w, tc.by)
			}
			for _, part := range tc.says {
				if !strings.Contains(w.Message, part) {
					t.Errorf("message %q does not say %q", w.Message, part)
				}
			}
		})
	}
}

func TestFirstConsumer_FailedImports(t *testing.T) {
	for name, tc := range map[string]struct {
		shelf    *shelf
		consumer bool
		failed   string
	}{
		"no volumes, no maps":                    {newShelf(pending), false, ""},
		"22 of a DV":                             {newShelf(pending).dv("a").filled("a", unconsumed), true, ""},
		"22 of a PVC":                            {newShelf(pending).pvc("a").filled("a", unconsumed), true, ""},
		"22 one of two":                          {newShelf(pending).dv("a").filled("a", succeeded).dv("b").filled("b", unconsumed), true, ""},
		"22 the claim is not made yet":           {newShelf(pending).dv("a").dataVolume("a", unconsumed), false, ""},
		"25 succeeded":                           {newShelf(pending).dv("a").filled("a", succeeded), false, ""},
		"31 class waits, nobody fills the claim": {newShelf(pending).pvc("a").claim("a", inClaimPhase(corev1.ClaimPending)), false, ""},
		"plugged later":                          {newShelf(pending).hotDV("a").filled("a", unconsumed), false, ""},
		"filled before":                          {newShelf(pending).dv("a").claim("a").dataVolume("a", unconsumed), false, ""},
		"28 of a DV":                             {newShelf(pending).dv("a").filled("a", cdiv1.Failed), false, "a"},
		"28 of a DV without claim":               {newShelf(pending).dv("a").dataVolume("a", cdiv1.Failed), false, "a"},
		"28 of a PVC":                            {newShelf(pending).pvc("a").claim("a", filledBy("x")).dataVolume("x", cdiv1.Failed), false, "x"},
		"28 of a plugged one":                    {newShelf(pending).hotDV("a").filled("a", cdiv1.Failed), false, "a"},
		"28 of an ephemeral volume":              {newShelf(pending).volume("e", ephemeralSource("a")).filled("a", cdiv1.Failed), false, "a"},
		"28 of one beside":                       {newShelf(pending).dataVolume("a", cdiv1.Failed), false, ""},
		"28 beside one that waits":               {newShelf(pending).dv("a").filled("a", unconsumed).dv("b").filled("b", cdiv1.Failed), true, "b"},
	} {
		t.Run(name, func(t *testing.T) {
			if got := firstConsumer(tc.shelf.Snapshot); got != tc.consumer {
				t.Errorf("waits for a consumer: %v, want %v", got, tc.consumer)
			}
			var failed string
			if dv := importFailed(tc.shelf.Snapshot); dv != nil {
				failed = dv.Name
			}
			if failed != tc.failed {
				t.Errorf("failed is %q, want %q", failed, tc.failed)
			}
		})
	}
}

func TestDataVolumesReady(t *testing.T) {
	for name, want := range map[string]string{
		"":              "",
		"29 True":       "True AllDVsReady",
		"29 T,T,T":      "True AllDVsReady",
		"29 T,F,T":      "False NotAllDVsReady",
		"29 U,U,U":      "Unknown NotAllDVsReady",
		"29 T,T,U":      "Unknown NotAllDVsReady",
		"29 U,T,T":      "Unknown NotAllDVsReady",
		"29 T,F,U":      "False NotAllDVsReady",
		"29 T,U,F":      "False NotAllDVsReady",
		"29 F,U,T":      "False NotAllDVsReady",
		"29 none, True": "Unknown NotAllDVsReady",
		"29 odd, True":  "Unknown NotAllDVsReady",
	} {
		t.Run(name, func(t *testing.T) {
			k := newShelf(pending)
			_, list, _ := strings.Cut(name, " ")
			for i, word := range strings.FieldsFunc(list, func(r rune) bool { return r == ',' || r == ' ' }) {
				id := fmt.Sprintf("d%d", i)
				k.dv(id).filled(id, cdiv1.Pending, func(d *cdiv1.DataVolume) {
					status := map[string]corev1.ConditionStatus{"T": "True", "F": "False", "U": "Unknown", "True": "True", "odd": "odd"}[word]
					d.Status.Conditions = []cdiv1.DataVolumeCondition{{Type: cdiv1.DataVolumeBound, Status: corev1.ConditionTrue}}
					if word != "none" {
						d.Status.Conditions = append(d.Status.Conditions, cdiv1.DataVolumeCondition{Type: cdiv1.DataVolumeReady, Status: status})
					}
				})
			}
			got := dataVolumesReady(k.Snapshot)
			if want == "" {
				if diff := cmp.Diff(conditionChange{}, got); diff != "" {
					t.Error(diff)
				}
				return
			}
			if c := got.Set; c == nil || string(c.Status)+" "+c.Reason != want || c.Type != v1.VirtualMachineInstanceDataVolumesReady || got.Type != c.Type {
				t.Fatalf("got %+v, want %s", c, want)
			}
			prefix := map[bool]string{true: "All of", false: "Not all of"}[strings.HasPrefix(want, "True")]
			if !strings.HasPrefix(got.Set.Message, prefix) {
				t.Errorf("message %q does not begin with %q", got.Set.Message, prefix)
			}
		})
	}
}

func TestDataVolumesReady_Progress(t *testing.T) {
	message := func(p cdiv1.DataVolumeProgress) string {
		k := newShelf(pending).dv("a").filled("a", cdiv1.ImportInProgress, func(d *cdiv1.DataVolume) { d.Status.Progress = p })
		return dataVolumesReady(k.Snapshot).Set.Message
	}
	if a, b := message("1%"), message("2%"); a != b || !strings.Contains(a, "ns/a") {
		t.Errorf("%q and %q: want the same, with the name", a, b)
	}
}

func TestProvisioning(t *testing.T) {
	for name, tc := range map[string]struct {
		shelf       *shelf
		set, remove bool
	}{
		"no volumes":                {newShelf(v1.VmPhaseUnset), false, false},
		"22 waits":                  {newShelf(pending).dv("a").filled("a", unconsumed), true, false},
		"22 waits, phase unset":     {newShelf(v1.VmPhaseUnset).dv("a").filled("a", unconsumed), true, false},
		"28 another has failed":     {newShelf(pending).dv("a").filled("a", unconsumed).hotDV("b").filled("b", cdiv1.Failed), false, false},
		"25 is filled":              {newShelf(pending).dv("a").filled("a", succeeded), false, false},
		"has its Pod":               {newShelf(v1.Scheduling).dv("a").filled("a", unconsumed), false, true},
		"has its Pod, all is there": {newShelf(v1.Scheduling), false, true},
	} {
		t.Run(name, func(t *testing.T) {
			got := provisioning(tc.shelf.Snapshot)
			if (got.Set != nil) != tc.set || got.Remove != tc.remove {
				t.Fatalf("got %+v", got)
			}
			if c := got.Set; c != nil && (c.Status != corev1.ConditionTrue || c.Reason != "" || c.Type != v1.VirtualMachineInstanceProvisioning) {
				t.Errorf("23 condition is %+v, want True without reason", c)
			}
		})
	}
}
