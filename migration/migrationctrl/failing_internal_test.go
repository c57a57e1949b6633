// SPDX-License-Identifier: Apache-2.0

package migrationctrl

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	v1 "kubevirt.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/virtloom/virtloom/expectations/expectationsctrl"
	"github.com/virtloom/virtloom/migration"
	"github.com/virtloom/virtloom/template"
)

// failing refuses all writes, with a text that is never the same.
type failing struct{ tries int }

func (f *failing) err() error {
	f.tries++
	return apierrors.NewInternalError(fmt.Errorf("webhook at 10.0.0.%d, %s: failed after %dms", f.tries%250,
		start.Add(time.Duration(f.tries)*time.Second).Format(time.RFC3339Nano), f.tries*7))
}

func (f *failing) AbortBackup(context.Context, *v1.VirtualMachineInstance, string) error {
	return f.err()
}

func (f *failing) faults() interceptor.Funcs {
	return interceptor.Funcs{
		Create: func(context.Context, client.WithWatch, client.Object, ...client.CreateOption) error { return f.err() },
		Delete: func(context.Context, client.WithWatch, client.Object, ...client.DeleteOption) error { return f.err() },
		Patch: func(context.Context, client.WithWatch, client.Object, client.Patch, ...client.PatchOption) error {
			return f.err()
		},
	}
}

// plain renders Pods of their names alone.
type plain struct{}

func plainPod(name string) (*corev1.Pod, error) {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}}, nil
}

func (plain) MigrationTarget(template.Input) (*corev1.Pod, error)   { return plainPod("target") }
func (plain) HotplugAttachment(template.Input) (*corev1.Pod, error) { return plainPod("hp") }

// mapped is a client that knows how kinds are read.
type mapped struct {
	client.Client
	mapper *meta.DefaultRESTMapper
}

func (m mapped) RESTMapper() meta.RESTMapper { return m.mapper }

// mapped gives the scene's controller a gate that can read live.
func (s *scene) mapped(t *testing.T) {
	t.Helper()
	m := mapped{s.Client, meta.NewDefaultRESTMapper([]schema.GroupVersion{v1.GroupVersion, corev1.SchemeGroupVersion})}
	m.mapper.Add(corev1.SchemeGroupVersion.WithKind("Pod"), meta.RESTScopeNamespace)
	m.mapper.Add(v1.VirtualMachineInstanceMigrationGroupVersionKind, meta.RESTScopeNamespace)
	var err error
	if s.r.gate, err = expectationsctrl.NewGate(s, expectationsctrl.Options{Clock: s.clock, Client: m}); err != nil {
		t.Fatal(err)
	}
}

// failingMove is a migration of which every action fails.
func failingMove(t *testing.T, f *failing) (*scene, *gathered) {
	t.Helper()
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "ns"}}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-2", Labels: map[string]string{v1.NodeSchedulable: "true"}}}
	s := newScene(t, f.faults(), ns, node)
	s.r.Renderer, s.r.Backups = plain{}, f
	s.mapped(t)
	g := &gathered{key: types.NamespacedName{Namespace: "ns", Name: "move"}}
	g.Migration = &v1.VirtualMachineInstanceMigration{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "move", UID: "move-uid", ResourceVersion: "1"}}
	g.VMI = leaving("web", "node-1")
	g.VMI.ResourceVersion = "1"
	g.TargetPod = &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "target", UID: "target-uid"}}
	g.Claims = map[string]*corev1.PersistentVolumeClaim{"state": {ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "state", UID: "claim-uid"}}}
	g.owner.Key, g.owner.UID = g.key, g.Migration.UID
	return s, g
}

// A failing action, with another text each time, emits at most one event.
func TestAction_FailureReportedOnce(t *testing.T) {
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "state", UID: "claim-uid", Labels: map[string]string{"a": "b"}}}
	pod := &migration.PodRef{Name: "target", UID: "target-uid"}
	node := "node-2"
	for kind := range actions {
		a := map[migration.Verb]migration.Action{
			migration.CreateClaim: {Claim: claim}, migration.ChangeClaim: {Claim: claim}, migration.DeleteClaim: {Claim: claim},
			migration.CreateAttachment: {Volumes: []string{"disk"}}, migration.AnnotatePod: {Pod: pod, Annotations: map[string]string{"a": "b"}},
			migration.DeletePod: {Pod: pod}, migration.ChangeVMI: {Change: &migration.VMIChange{Labels: map[string]string{v1.MigrationTargetNodeNameLabel: node}}},
			migration.AbortBackup: {Name: "backup"}, migration.Collect: {Name: "move"},
		}[kind]
		a.Verb = kind
		t.Run(string(kind), func(t *testing.T) {
			f := &failing{}
			s, g := failingMove(t, f)
			for range 50 {
				if err := (actor{s.r}).act(t.Context(), g, migration.Plan{Actions: []migration.Action{a}}); err == nil {
					t.Fatal("the action works")
				}
				s.clock.SetTime(s.clock.Now().Add(time.Second))
			}
			if f.tries != 50 || len(s.recorded.Events) > 1 {
				t.Errorf("%d writes, and %d events; want one for each try, and one event at the most", f.tries, len(s.recorded.Events))
			}
		})
	}
}

// A target Pod or claim whose creation may still be carried out would outlive a migration that is let go.
func TestStore_MigrationIsNotLetGoWhileItsPodMayArriveLate(t *testing.T) {
	f := &failing{}
	s, g := failingMove(t, f)
	if err := (actor{s.r}).createTarget(t.Context(), g, migration.Action{Verb: migration.CreateTarget}); !apierrors.IsInternalError(errors.Unwrap(err)) {
		t.Fatalf("got %v, want an answer that leaves it open", err)
	}
	if v, err := s.r.gate.Check(t.Context(), g.owner); err != nil || !v.Satisfied() {
		t.Fatalf("%v, %v: it cannot be tried again", v, err)
	}
	g.TargetPod, g.Claims = nil, nil
	g.Config, g.Migration.Status.Phase = s.r.config(nil), v1.MigrationFailed
	g.Migration.Finalizers = []string{v1.VirtualMachineInstanceMigrationFinalizer}
	for _, after := range []time.Duration{0, time.Minute} {
		s.clock.SetTime(s.clock.Now().Add(after))
		gatherer{s.r}.late(g)
		released := migration.Decide(g.Snapshot, s.clock.Now()).Release
		if want := after > 0; released != want {
			t.Errorf("%s later it is let go: %v, want %v (late: %s)", after, released, want, g.Late)
		}
		if wait := !g.lateUntil.After(s.clock.Now()); after == 0 && wait {
			t.Error("it is not looked at again when the Pod is too late")
		}
	}
}
