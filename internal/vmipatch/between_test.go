// SPDX-License-Identifier: Apache-2.0

package vmipatch_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/internal/vmipatch"
)

type vmi = v1.VirtualMachineInstance

// stored returns a VMI as a typed writer may store it.
func stored(edit ...func(*vmi)) *vmi {
	g := &vmi{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "guest", UID: "u", ResourceVersion: "7"},
		Status:     v1.VirtualMachineInstanceStatus{Phase: v1.Running},
	}
	for _, e := range edit {
		e(g)
	}
	return g
}

// edited returns a copy of the VMI with a change.
func edited(g *vmi, edit func(*vmi)) *vmi {
	g = g.DeepCopy()
	edit(g)
	return g
}

func condition(t, status, message string) v1.VirtualMachineInstanceCondition {
	return v1.VirtualMachineInstanceCondition{
		Type: v1.VirtualMachineInstanceConditionType(t), Status: corev1.ConditionStatus(status), Message: message,
	}
}

func conditions(all ...v1.VirtualMachineInstanceCondition) func(*vmi) {
	return func(g *vmi) { g.Status.Conditions = all }
}

func between(t testing.TB, was, want *vmi, guards ...vmipatch.Guard) []byte {
	t.Helper()
	data, err := vmipatch.Between(was, want, guards...)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// marshal returns the object as the API server encodes it for a patch.
func marshal(t testing.TB, o any) []byte {
	t.Helper()
	raw, err := json.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

// apply applies a patch to a document with the API server's library.
func apply(t testing.TB, doc, patch []byte) (*vmi, error) {
	t.Helper()
	if patch == nil {
		patch = []byte("[]")
	}
	p, err := jsonpatch.DecodePatch(patch)
	if err != nil {
		t.Fatal(err)
	}
	if doc, err = p.Apply(doc); err != nil {
		return nil, err
	}
	g := &vmi{}
	if err := json.Unmarshal(doc, g); err != nil {
		t.Fatal(err)
	}
	return g, nil
}

var (
	noon  = metav1.NewTime(time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC))
	later = metav1.NewTime(noon.Add(time.Hour))
	gig   = resource.MustParse("1Gi")
	gigs  = resource.MustParse("2Gi")
)

func TestBetween_Patch(t *testing.T) {
	uid := `{"op":"test","path":"/metadata/uid","value":"u"}`
	two := stored(conditions(condition("A", "True", ""), condition("B", "True", "b")))
	for name, tc := range map[string]struct {
		was    *vmi
		edit   func(*vmi)
		guards []vmipatch.Guard
		want   string
	}{
		"nothing":               {was: two, edit: func(*vmi) {}, guards: []vmipatch.Guard{vmipatch.Phase}},
		"a first label":         {was: stored(), edit: func(g *vmi) { g.Labels = map[string]string{"a/b~": "c"} }, want: `{"op":"test","path":"/metadata/labels","value":null},{"op":"add","path":"/metadata/labels","value":{"a/b~":"c"}}`},
		"a label":               {was: stored(func(g *vmi) { g.Labels = map[string]string{"a": "b"} }), edit: func(g *vmi) { g.Labels["a/b~"] = "c" }, want: `{"op":"test","path":"/metadata/labels/a~1b~0","value":null},{"op":"add","path":"/metadata/labels/a~1b~0","value":"c"}`},
		"the last label goes":   {was: stored(func(g *vmi) { g.Labels = map[string]string{"a": "b"} }), edit: func(g *vmi) { g.Labels = nil }, want: `{"op":"test","path":"/metadata/labels/a","value":"b"},{"op":"remove","path":"/metadata/labels/a"}`},
		"an annotation":         {was: stored(func(g *vmi) { g.Annotations = map[string]string{"a": "<"} }), edit: func(g *vmi) { g.Annotations["a"] = "" }, want: `{"op":"test","path":"/metadata/annotations/a","value":"\u003c"},{"op":"add","path":"/metadata/annotations/a","value":""}`},
		"a first finalizer":     {was: stored(), edit: func(g *vmi) { g.Finalizers = []string{"a"} }, want: `{"op":"test","path":"/metadata/finalizers","value":null},{"op":"add","path":"/metadata/finalizers","value":["a"]}`},
		"a finalizer more":      {was: stored(func(g *vmi) { g.Finalizers = []string{"a"} }), edit: func(g *vmi) { g.Finalizers = []string{"a", "b"} }, want: `{"op":"test","path":"/metadata/finalizers","value":["a"]},{"op":"add","path":"/metadata/finalizers","value":["a","b"]}`},
		"finalizers less":       {was: stored(func(g *vmi) { g.Finalizers = []string{"a", "b", "c"} }), edit: func(g *vmi) { g.Finalizers = []string{"b"} }, want: `{"op":"test","path":"/metadata/finalizers/2","value":"c"},{"op":"test","path":"/metadata/finalizers/0","value":"a"},{"op":"remove","path":"/metadata/finalizers/2"},{"op":"remove","path":"/metadata/finalizers/0"}`},
		"the phase":             {was: stored(), edit: func(g *vmi) { g.Status.Phase = v1.Failed }, want: `{"op":"test","path":"/status/phase","value":"Running"},{"op":"add","path":"/status/phase","value":"Failed"}`},
		"a new field":           {was: stored(), edit: func(g *vmi) { g.Status.NodeName = "n" }, want: `{"op":"test","path":"/status/nodeName","value":null},{"op":"add","path":"/status/nodeName","value":"n"}`},
		"a field goes":          {was: stored(), edit: func(g *vmi) { g.Status.Phase = "" }, want: `{"op":"test","path":"/status/phase","value":"Running"},{"op":"remove","path":"/status/phase"}`},
		"zeros are not tested":  {was: stored(), edit: func(g *vmi) { g.Status.RuntimeUser, g.Status.GuestOSInfo.Name = 107, "n" }, want: `{"op":"add","path":"/status/guestOSInfo","value":{"name":"n"}},{"op":"add","path":"/status/runtimeUser","value":107}`},
		"quantities neither":    {was: stored(func(g *vmi) { g.Status.Memory = &v1.MemoryStatus{GuestAtBoot: &gig} }), edit: func(g *vmi) { g.Status.Memory.GuestAtBoot = &gigs }, want: `{"op":"add","path":"/status/memory/guestAtBoot","value":"2Gi"}`},
		"the first condition":   {was: stored(), edit: conditions(condition("A", "True", "")), want: `{"op":"test","path":"/status/conditions","value":null},{"op":"add","path":"/status/conditions","value":[{"lastProbeTime":null,"lastTransitionTime":null,"status":"True","type":"A"}]}`},
		"a condition changes":   {was: two, edit: conditions(two.Status.Conditions[0], condition("B", "False", "b")), want: `{"op":"test","path":"/status/conditions/1/type","value":"B"},{"op":"test","path":"/status/conditions/1/status","value":"True"},{"op":"test","path":"/status/conditions/1/reason","value":null},{"op":"test","path":"/status/conditions/1/message","value":"b"},{"op":"add","path":"/status/conditions/1/status","value":"False"}`},
		"a condition goes":      {was: two, edit: conditions(two.Status.Conditions[1]), want: `{"op":"test","path":"/status/conditions/0/lastProbeTime","value":null},{"op":"test","path":"/status/conditions/0/lastTransitionTime","value":null},{"op":"test","path":"/status/conditions/0/message","value":null},{"op":"test","path":"/status/conditions/0/reason","value":null},{"op":"test","path":"/status/conditions/0/status","value":"True"},{"op":"test","path":"/status/conditions/0/type","value":"A"},{"op":"remove","path":"/status/conditions/0"}`},
		"a condition is put in": {was: two, edit: conditions(two.Status.Conditions[0], condition("N", "True", ""), two.Status.Conditions[1]), want: `{"op":"test","path":"/status/conditions/0/type","value":"A"},{"op":"test","path":"/status/conditions/1/type","value":"B"},{"op":"add","path":"/status/conditions/-","value":""},{"op":"test","path":"/status/conditions/2","value":""},{"op":"remove","path":"/status/conditions/2"},{"op":"add","path":"/status/conditions/1","value":{"lastProbeTime":null,"lastTransitionTime":null,"status":"True","type":"N"}}`},
		"guards, absent":        {was: stored(), edit: func(g *vmi) { g.Status.Phase = "X" }, guards: []vmipatch.Guard{vmipatch.Deletion, vmipatch.Phase, vmipatch.Label("l"), vmipatch.Annotation("a"), vmipatch.Finalizers, vmipatch.Status("migrationState")}, want: `{"op":"test","path":"/metadata/deletionTimestamp","value":null},{"op":"test","path":"/status/phase","value":"Running"},{"op":"test","path":"/metadata/labels","value":null},{"op":"test","path":"/metadata/annotations","value":null},{"op":"test","path":"/metadata/finalizers","value":null},{"op":"test","path":"/status/migrationState","value":null},{"op":"add","path":"/status/phase","value":"X"}`},
		"guards": {was: stored(func(g *vmi) {
			g.DeletionTimestamp, g.Labels, g.Finalizers = &noon, map[string]string{"l": "1"}, []string{"f"}
		}), edit: func(g *vmi) { g.Status.Phase = "X" }, guards: []vmipatch.Guard{vmipatch.Deletion, vmipatch.Label("l"), vmipatch.Label("m"), vmipatch.Finalizers}, want: `{"op":"test","path":"/metadata/deletionTimestamp","value":"2026-01-02T12:00:00Z"},{"op":"test","path":"/metadata/labels/l","value":"1"},{"op":"test","path":"/metadata/labels/m","value":null},{"op":"test","path":"/metadata/finalizers","value":["f"]},{"op":"test","path":"/status/phase","value":"Running"},{"op":"add","path":"/status/phase","value":"X"}`},
		"guards of lists": {was: stored(func(g *vmi) {
			g.Spec.Volumes = []v1.Volume{{Name: "a"}}
			g.Status.VolumeStatus = []v1.VolumeStatus{{Name: "a", Target: "vda"}}
		}), edit: func(g *vmi) { g.Status.Phase = "X" }, guards: []vmipatch.Guard{vmipatch.Volumes, vmipatch.VolumePhases}, want: `{"op":"test","path":"/spec/volumes/0/name","value":"a"},{"op":"add","path":"/spec/volumes/-","value":""},{"op":"test","path":"/spec/volumes/1","value":""},{"op":"remove","path":"/spec/volumes/1"},{"op":"test","path":"/status/volumeStatus/0/name","value":"a"},{"op":"test","path":"/status/volumeStatus/0/phase","value":null},{"op":"add","path":"/status/volumeStatus/-","value":""},{"op":"test","path":"/status/volumeStatus/1","value":""},{"op":"remove","path":"/status/volumeStatus/1"},{"op":"test","path":"/status/phase","value":"Running"},{"op":"add","path":"/status/phase","value":"X"}`},
		"guards of lists, absent": {was: stored(), edit: func(g *vmi) { g.Status.Phase = "X" }, guards: []vmipatch.Guard{vmipatch.Volumes, vmipatch.VolumePhases}, want: `{"op":"test","path":"/spec/volumes","value":null},{"op":"test","path":"/status/volumeStatus","value":null},{"op":"test","path":"/status/phase","value":"Running"},{"op":"add","path":"/status/phase","value":"X"}`},
		"the version":             {was: stored(), edit: func(g *vmi) { g.Status.Phase = "X" }, guards: []vmipatch.Guard{vmipatch.Phase, vmipatch.Version}, want: `{"op":"test","path":"/metadata/resourceVersion","value":"7"},{"op":"add","path":"/status/phase","value":"X"}`},
		"a first status":          {was: stored(func(g *vmi) { g.Status.Phase = "" }), edit: func(g *vmi) { g.Status.Phase = "X" }, want: `{"op":"test","path":"/metadata/resourceVersion","value":"7"},{"op":"add","path":"/status","value":{"guestOSInfo":{},"phase":"X","runtimeUser":0}}`},
		"a guard on no status":    {was: stored(func(g *vmi) { g.Status.Phase = "" }), edit: func(g *vmi) { g.Finalizers = []string{"f"} }, guards: []vmipatch.Guard{vmipatch.Phase}, want: `{"op":"test","path":"/metadata/resourceVersion","value":"7"},{"op":"add","path":"/metadata/finalizers","value":["f"]}`},
		"no guard on no status":   {was: stored(func(g *vmi) { g.Status.Phase = "" }), edit: func(g *vmi) { g.Finalizers = []string{"f"} }, want: `{"op":"test","path":"/metadata/finalizers","value":null},{"op":"add","path":"/metadata/finalizers","value":["f"]}`},
		"plain lists as a whole": {was: stored(func(g *vmi) {
			g.Status.Interfaces = []v1.VirtualMachineInstanceNetworkInterface{{Name: "n", IPs: []string{"1", "2"}}}
		}), edit: func(g *vmi) { g.Status.Interfaces[0].IPs = []string{"2"} }, want: `{"op":"test","path":"/status/interfaces/0/name","value":"n"},{"op":"test","path":"/status/interfaces/0/ipAddresses","value":["1","2"]},{"op":"add","path":"/status/interfaces/0/ipAddresses","value":["2"]}`},
		"maps that end are gone": {was: stored(func(g *vmi) { g.Status.ActivePods = map[types]string{"u": "n"} }), edit: func(g *vmi) { g.Status.ActivePods = nil }, want: `{"op":"test","path":"/status/activePods","value":{"u":"n"}},{"op":"remove","path":"/status/activePods"}`},
		"times are not tested": {was: stored(func(g *vmi) {
			g.Status.PhaseTransitionTimestamps = []transition{{Phase: "P", PhaseTransitionTimestamp: noon}}
		}), edit: func(g *vmi) { g.Status.PhaseTransitionTimestamps[0].PhaseTransitionTimestamp = later }, want: `{"op":"test","path":"/status/phaseTransitionTimestamps/0/phase","value":"P"},{"op":"add","path":"/status/phaseTransitionTimestamps/0/phaseTransitionTimestamp","value":"2026-01-02T13:00:00Z"}`},
		"a pointer's zero counts": {was: stored(func(g *vmi) { g.Status.VSOCKCID = new(uint32) }), edit: func(g *vmi) { g.Status.VSOCKCID = nil }, want: `{"op":"test","path":"/status/VSOCKCID","value":0},{"op":"remove","path":"/status/VSOCKCID"}`},
	} {
		t.Run(name, func(t *testing.T) {
			want := edited(tc.was, tc.edit)
			got := string(between(t, tc.was, want, tc.guards...))
			if tc.want == "" && got != "" || tc.want != "" && got != "["+uid+","+tc.want+"]" {
				t.Errorf("the patch is\n%s, want\n[%s,%s]", got, uid, tc.want)
			}
			if got == "" {
				return
			}
			if after, err := apply(t, marshal(t, tc.was), []byte(got)); err != nil || !alike(t, after, want) {
				t.Errorf("it makes %s, %v; want %s", marshal(t, after), err, marshal(t, want))
			}
		})
	}
}

func TestBetween_Unsupported(t *testing.T) {
	for name, tc := range map[string]struct {
		was    *vmi
		edit   func(*vmi)
		guards []vmipatch.Guard
		says   string
	}{
		"the spec":         {was: stored(), edit: func(g *vmi) { g.Spec.Hostname = "h" }, says: "the spec changes"},
		"owners":           {was: stored(), edit: func(g *vmi) { g.OwnerReferences = []metav1.OwnerReference{{Name: "o"}} }, says: "metadata other than"},
		"another object":   {was: stored(), edit: func(g *vmi) { g.UID = "other" }, says: "metadata other than"},
		"no UID":           {was: stored(func(g *vmi) { g.UID = "" }), edit: func(*vmi) {}, says: "never stored"},
		"no version":       {was: stored(func(g *vmi) { g.ResourceVersion = "" }), edit: func(*vmi) {}, says: "never stored"},
		"an unknown guard": {was: stored(), edit: func(*vmi) {}, guards: []vmipatch.Guard{vmipatch.Status("misspelt")}, says: `/status has no field "misspelt"`},
	} {
		t.Run(name, func(t *testing.T) {
			data, err := vmipatch.Between(tc.was, edited(tc.was, tc.edit), tc.guards...)
			if err == nil || !strings.Contains(err.Error(), tc.says) || data != nil {
				t.Fatalf("got %s, %v", data, err)
			}
			if !errors.Is(err, vmipatch.ErrUnsupported) {
				t.Errorf("%v is not ErrUnsupported", err)
			}
		})
	}
}
