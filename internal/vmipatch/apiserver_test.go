// SPDX-License-Identifier: Apache-2.0

package vmipatch_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	kubetypes "k8s.io/apimachinery/pkg/types"
	v1 "kubevirt.io/api/core/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/virtloom/virtloom/internal/rig"
	"github.com/virtloom/virtloom/internal/rig/rigtest"
	"github.com/virtloom/virtloom/internal/vmipatch"
)

// server is a real API server.
type server struct {
	client.Client
	t    *testing.T
	made int
}

func newServer(t *testing.T) *server {
	t.Helper()
	ctrl.SetLogger(logr.Discard())
	r := rigtest.New(t)
	s := runtime.NewScheme()
	c, err := client.New(r.Config(rig.UserAdmin), client.Options{Scheme: s})
	if err = errors.Join(err, v1.AddToScheme(s)); err != nil {
		t.Fatal(err)
	}
	return &server{Client: c, t: t}
}

// make stores an object with the given metadata and status in JSON, and returns what a typed
// client reads.
func (s *server) make(metadata, status string) *vmi {
	s.t.Helper()
	s.made++
	o := &unstructured.Unstructured{}
	text := fmt.Sprintf(`{"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance",
		"metadata": {"namespace": "default", "name": "guest-%d"%s}, "spec": {"domain": {"devices": {}}}%s}`, s.made, metadata, status)
	if err := json.Unmarshal([]byte(text), &o.Object); err != nil {
		s.t.Fatal(err)
	}
	if err := s.Create(s.t.Context(), o); err != nil {
		s.t.Fatal(err)
	}
	return s.read(o.GetName())
}

func (s *server) read(name string) *vmi {
	s.t.Helper()
	g := &vmi{}
	if err := s.Get(s.t.Context(), client.ObjectKey{Namespace: "default", Name: name}, g); err != nil {
		s.t.Fatal(err)
	}
	return g
}

// send sends a patch.
func (s *server) send(to *vmi) func([]byte) error {
	return func(patch []byte) error {
		o := &vmi{}
		o.Namespace, o.Name = to.Namespace, to.Name
		return s.Patch(s.t.Context(), o, client.RawPatch(kubetypes.JSONPatchType, patch))
	}
}

// sends submits the patch of Between and returns the object stored afterwards.
func (s *server) sends(was, want *vmi, guards ...vmipatch.Guard) (*vmi, error) {
	s.t.Helper()
	err := s.send(was)(between(s.t, was, want, guards...))
	return s.read(was.Name), err
}

// says fails unless both objects have the same metadata and status.
func (s *server) says(got, want *vmi) {
	s.t.Helper()
	got, want = got.DeepCopy(), want.DeepCopy()
	for _, g := range []*vmi{got, want} {
		g.TypeMeta, g.ManagedFields, g.ResourceVersion, g.Generation = want.TypeMeta, nil, "", 0
	}
	if !alike(s.t, got, want) {
		s.t.Errorf("the server has\n%s, want\n%s", marshal(s.t, got), marshal(s.t, want))
	}
}

func TestPatch_APIServer(t *testing.T) {
	s := newServer(t)
	t.Run("all is changed, from nothing, and back", s.fromNothing)
	t.Run("texts that no typed writer stores", s.foreignTexts)
	t.Run("what can only be written under the version", s.underTheVersion)
	t.Run("guards", s.guards)
	t.Run("invalid objects are not refused patches", s.invalid)
	t.Run("a successor is left alone", s.successor)
	t.Run("writers that run side by side", s.sideBySide)
}

func (s *server) fromNothing(t *testing.T) {
	s.t = t
	size := resource.MustParse("1Gi")
	full := func(g *vmi) {
		g.Labels, g.Annotations = map[string]string{"a/b": "c"}, map[string]string{"t": "\"<&>\u2028\\é\b\x7f"}
		g.Finalizers = []string{"example.test/a", "example.test/b"}
		g.Status = v1.VirtualMachineInstanceStatus{
			Phase: v1.Running, Conditions: []v1.VirtualMachineInstanceCondition{condition("A", "True", "<"), condition("B", "True", "")},
			ActivePods: map[types]string{"u": "n"}, Memory: &v1.MemoryStatus{GuestAtBoot: &size},
			MigrationState: &v1.VirtualMachineInstanceMigrationState{TargetNode: "n", StartTimestamp: &noon, TargetCPUSet: []int{1, 2}},
			VolumeStatus:   []v1.VolumeStatus{{Name: "v", HotplugVolume: &v1.HotplugVolumeStatus{}}},
		}
	}
	was := s.make("", "")
	want := edited(was, full)
	got, err := s.sends(was, want)
	if err != nil {
		t.Fatal(err)
	}
	s.says(got, want)
	all := edited(got, func(g *vmi) {
		g.Annotations["t"] = "x"
		g.Status.Conditions = g.Status.Conditions[1:]
		g.Status.Conditions[0].Message = "<<"
		g.Status.MigrationState.Completed = true
		g.Status.VolumeStatus = append(g.Status.VolumeStatus, v1.VolumeStatus{Name: "w"})
	})
	if got, err = s.sends(got, all, vmipatch.Status("migrationState"), vmipatch.Finalizers, vmipatch.Annotation("t")); err != nil {
		t.Fatal(err)
	}
	s.says(got, all)
	none := edited(got, func(g *vmi) {
		g.Labels, g.Annotations, g.Finalizers = nil, nil, nil
		g.Status = v1.VirtualMachineInstanceStatus{Phase: v1.Running}
	})
	if got, err = s.sends(got, none); err != nil {
		t.Fatal(err)
	}
	s.says(got, none)
	// An emptied field is removed, so that it can be added again without the version.
	again := edited(got, full)
	if got, err = s.sends(got, again); err != nil {
		t.Fatal(err)
	}
	s.says(got, again)
}

func (s *server) foreignTexts(t *testing.T) {
	s.t = t
	was := s.make(`, "labels": {}, "annotations": null`, `, "status": {"phase": "Running", "interfaces": null, "volumeStatus": null,
		"memory": {"guestAtBoot": "1024Mi", "guestCurrent": "1024Mi"},
		"migrationState": {"startTimestamp": "2026-01-02T13:00:00.5+01:00", "targetNode": "n", "targetMemoryOverhead": "1024Mi"},
		"conditions": [{"type": "A", "status": "True", "lastProbeTime": null, "lastTransitionTime": null},
			{"type": "B", "status": "True", "lastTransitionTime": "2026-01-02T13:00:00.25+01:00"},
			{"type": "C", "status": "True", "lastProbeTime": null, "lastTransitionTime": null}]}`)
	want := edited(was, func(g *vmi) {
		g.Labels, g.Annotations = map[string]string{"a": "b"}, map[string]string{"a": "b"}
		g.Status.Conditions[0].Status, g.Status.Conditions[0].LastTransitionTime = corev1.ConditionFalse, later
		g.Status.Conditions[1].Message, g.Status.Conditions[1].LastTransitionTime = "m", later
		g.Status.Conditions = append(g.Status.Conditions[:2], condition("D", "True", ""))
		g.Status.Memory, g.Status.MigrationState = &v1.MemoryStatus{GuestAtBoot: &gigs}, nil
		g.Status.Interfaces = []v1.VirtualMachineInstanceNetworkInterface{{IP: "1"}}
		g.Status.VolumeStatus = []v1.VolumeStatus{{Name: "v"}}
	})
	got, err := s.sends(was, want, vmipatch.Status("migrationState"), vmipatch.Status("memory"), vmipatch.Status("conditions"))
	if err != nil {
		t.Fatal(err)
	}
	s.says(got, want)
}

func (s *server) underTheVersion(t *testing.T) {
	s.t = t
	for _, status := range []string{"", `, "status": {}`, `, "status": {"phase": "", "conditions": [], "guestOSInfo": {}, "runtimeUser": 0}`, `, "status": {"phase": "Running", "conditions": [], "activePods": {}, "nodeName": ""}`} {
		was := s.make("", status)
		want := edited(was, func(g *vmi) {
			g.Status.NodeName, g.Status.ActivePods, g.Status.RuntimeUser = "n", map[types]string{"u": "n"}, 107
			g.Status.Conditions = []v1.VirtualMachineInstanceCondition{condition("A", "True", "")}
		})
		if err := vmipatch.Write(was, want, s.send(was), vmipatch.Status("nodeName")); err != nil {
			t.Errorf("%s: %v", status, err)
		}
		s.says(s.read(was.Name), want)
		if err := vmipatch.Write(was, edited(was, func(g *vmi) { g.Status.NodeName = "m" }), s.send(was)); !vmipatch.Refused(err) {
			t.Errorf("%s: the loser gets %v", status, err)
		}
	}
}

func (s *server) guards(t *testing.T) {
	s.t = t
	guards := []vmipatch.Guard{vmipatch.Phase, vmipatch.Deletion, vmipatch.Label("l"), vmipatch.Annotation("a"), vmipatch.Status("migrationState")}
	was := s.make(`, "labels": {"is": "there"}, "annotations": {"is": "there"}, "finalizers": ["example.test/f"]`, `, "status": {"phase": "Running", "migrationState": {"targetNode": "n"}}`)
	report := func(g *vmi) { g.Status.Conditions = []v1.VirtualMachineInstanceCondition{condition("A", "True", "")} }
	want := edited(was, report)
	for name, edit := range map[string]func(*vmi){
		"the phase":       func(g *vmi) { g.Status.Phase = v1.Failed },
		"the label":       func(g *vmi) { g.Labels["l"] = "" },
		"the annotation":  func(g *vmi) { g.Annotations["a"] = "x" },
		"an abort":        func(g *vmi) { g.Status.MigrationState.AbortRequested = true },
		"the end of it":   func(g *vmi) { g.Status.MigrationState.EndTimestamp = &noon },
		"no move at all":  func(g *vmi) { g.Status.MigrationState = nil },
		"all annotations": func(g *vmi) { g.Annotations = nil },
	} {
		now, err := s.sends(s.read(was.Name), edited(s.read(was.Name), edit))
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if _, err := s.sends(was, want, guards...); !vmipatch.Refused(err) {
			t.Errorf("%s is guarded: %v", name, err)
		}
		if _, err := s.sends(now, edited(now, func(g *vmi) { g.Labels, g.Annotations, g.Status = was.Labels, was.Annotations, was.Status })); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
	}
	if _, err := s.sends(was, edited(was, func(g *vmi) { g.Labels["m"] = "other" })); err != nil {
		t.Fatal(err)
	}
	if err := s.Delete(t.Context(), was.DeepCopy()); err != nil {
		t.Fatal(err)
	}
	if _, err := s.sends(was, want, guards...); !vmipatch.Refused(err) {
		t.Errorf("a deletion is guarded: %v", err)
	}
	gone := s.read(was.Name)
	if got, err := s.sends(gone, edited(gone, report), guards...); err != nil || len(got.Status.Conditions) != 1 {
		t.Errorf("what is being deleted can be written: %v", err)
	}
}

func (s *server) invalid(t *testing.T) {
	s.t = t
	was := s.make("", `, "status": {"phase": "Running"}`)
	label := between(t, was, edited(was, func(g *vmi) { g.Labels = map[string]string{"a": "b c"} }))
	for name, patch := range map[string]string{
		"a label":    string(label),
		"the schema": `[{"op": "test", "path": "/status/phase", "value": "Running"}, {"op": "add", "path": "/status/phase", "value": 5}]`,
	} {
		if err := s.send(was)([]byte(patch)); !apierrors.IsInvalid(err) || vmipatch.Refused(err) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func (s *server) successor(t *testing.T) {
	s.t = t
	was := s.make("", `, "status": {"phase": "Running"}`)
	if err := s.Delete(t.Context(), was.DeepCopy()); err != nil {
		t.Fatal(err)
	}
	s.made--
	now := s.make("", `, "status": {"phase": "Running"}`)
	err := vmipatch.Write(was, edited(was, func(g *vmi) { g.Status.Phase = v1.Failed }), s.send(was))
	if now.Name != was.Name || now.UID == was.UID || !vmipatch.Refused(err) {
		t.Errorf("%s is answered %v", now.Name, err)
	}
	s.says(s.read(now.Name), now)
}

// sideBySide lets writers change different parts of one object, based on an old version, and
// all of them a common part.
func (s *server) sideBySide(t *testing.T) {
	s.t = t
	const writers, rounds = 8, 10
	was := s.make(`, "annotations": {"n": "-1"}`, `, "status": {"phase": "Running"}`)
	was, err := s.sends(was, edited(was, func(g *vmi) {
		for i := range writers {
			g.Status.Conditions = append(g.Status.Conditions, condition(fmt.Sprint(i), "True", "-1"))
		}
	}))
	if err != nil {
		t.Fatal(err)
	}
	var group sync.WaitGroup
	var mu sync.Mutex
	won := map[string]int{}
	for i := range writers {
		group.Go(func() {
			mine, shared := was.DeepCopy(), was.DeepCopy()
			for round := range rounds {
				word := fmt.Sprint(round)
				next := edited(mine, func(g *vmi) { g.Status.Conditions[i].Message = word })
				if err := s.send(was)(between(t, mine, next)); err != nil {
					t.Errorf("writer %d, who is alone, gets %v", i, err)
				}
				claim := edited(shared, func(g *vmi) { g.Annotations["n"] = fmt.Sprint(word, " by ", i) })
				switch err := s.send(was)(between(t, shared, claim)); {
				case err == nil:
					mu.Lock()
					won[shared.Annotations["n"]]++
					mu.Unlock()
				case !vmipatch.Refused(err):
					t.Errorf("a loser gets %v", err)
				}
				mine, shared = next, s.read(was.Name)
			}
		})
	}
	group.Wait()
	for from, times := range won {
		if times != 1 {
			t.Errorf("%d writers replaced %q", times, from)
		}
	}
	for i, c := range s.read(was.Name).Status.Conditions {
		if c.Message != fmt.Sprint(rounds-1) {
			t.Errorf("condition %d says %q", i, c.Message)
		}
	}
}
