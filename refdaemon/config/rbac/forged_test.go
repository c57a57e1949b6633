// SPDX-License-Identifier: Apache-2.0

package rbac_test

import (
	"context"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	v1 "kubevirt.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/virtloom/virtloom/handoff"
	"github.com/virtloom/virtloom/internal/rig"
)

// Who writes in the namespace tenant, where each may do everything.
const (
	tenant = "tenant"
	// person is a user.
	person = "jane"
	// virtController is KubeVirt's, and lookalike is called like it in the namespace of a user.
	virtController = "system:serviceaccount:kubevirt:kubevirt-controller"
	virtHandler    = "system:serviceaccount:kubevirt:kubevirt-handler"
	lookalike      = "system:serviceaccount:" + tenant + ":kubevirt-controller"
	// neighbour runs beside the controller, without being it.
	neighbour = "system:serviceaccount:virtloom-system:default"
	collector = "system:serviceaccount:kube-system:generic-garbage-collector"
)

// TestPolicies_ForgedObjects has a user who may do everything in a namespace forge the owner of a VMI.
func TestPolicies_ForgedObjects(t *testing.T) {
	w := newWorld(t)
	w.admit(t)
	t.Run("guests", w.testForgedGuests)
	t.Run("changes of guests", w.testForgedChanges)
	t.Run("templates", w.testForgedTemplates)
	t.Run("Pods", w.testForgedPods)
	t.Run("changes of Pods", w.testForgedPodChanges)
	t.Run("migrations", w.testForgedMigrations)
}

// admit gives everybody rights, and waits until all policies are in force.
func (w *world) admit(t *testing.T) {
	t.Helper()
	must(t, w.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: tenant}}))
	must(t, client.IgnoreAlreadyExists(w.Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: tenant, Name: "default"}})))
	var subjects []rbacv1.Subject
	for _, name := range []string{person, virtController, virtHandler, lookalike, neighbour, collector} {
		subjects = append(subjects, rbacv1.Subject{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: name})
	}
	must(t, w.Create(t.Context(), &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Namespace: tenant, Name: "everything"}, Subjects: subjects,
		RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
	}))
	for _, k := range templates {
		w.define(t, k)
	}
	forged := map[string]client.Object{
		"guests":     bare("probe", func(v *v1.VirtualMachineInstance) { v.Status.Phase = v1.Running }),
		"templates":  madeFrom(t, templates[0], `{"virtloom.dev/probe":"x"}`),
		"Pods":       pod("probe", func(p *corev1.Pod) { p.Labels = map[string]string{v1.CreatedByLabel: "x"} }),
		"migrations": migrationOf("probe", func(m *v1.VirtualMachineInstanceMigration) { m.Annotations = map[string]string{"virtloom.dev/x": ""} }),
	}
	// Without rights everything is forbidden.
	await(t, "the user to have rights", func() bool { return w.try(t, person, bare("probe")) == nil })
	for name, o := range forged {
		await(t, "the policy of "+name, func() bool { return apierrors.IsForbidden(w.try(t, person, o)) })
	}
}

// by is the configuration of a client: of the agent of that name, otherwise of the user.
func (w *world) by(who string) *rest.Config {
	if config, isAgent := w.agents[who]; isAgent {
		return config
	}
	if who == rig.UserAdmin || who == rig.UserController {
		return w.Config(who)
	}
	config := w.Config(rig.UserAdmin)
	config.Impersonate = rest.ImpersonationConfig{UserName: who}
	return config
}

// try is the answer to the creation of an object, which is not created.
func (w *world) try(t *testing.T, who string, o client.Object) error {
	t.Helper()
	return w.as(t, w.by(who)).Create(t.Context(), o.DeepCopyObject().(client.Object), client.DryRunAll)
}

// create makes an object as an administrator, for the time of a test.
func (w *world) create(t *testing.T, o client.Object) {
	t.Helper()
	must(t, w.Create(t.Context(), o))
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		must(t, w.Delete(ctx, o, client.GracePeriodSeconds(0)))
		must(t, client.IgnoreNotFound(w.Patch(ctx, o, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`)))))
	})
}

func bare(name string, edits ...func(*v1.VirtualMachineInstance)) *v1.VirtualMachineInstance {
	vmi := &v1.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{Namespace: tenant, Name: name, Labels: map[string]string{"app": "web"}}}
	for _, edit := range edits {
		edit(vmi)
	}
	return vmi
}

func annotation(key, value string) func(*v1.VirtualMachineInstance) {
	return func(vmi *v1.VirtualMachineInstance) { metav1.SetMetaDataAnnotation(&vmi.ObjectMeta, key, value) }
}

func labelled(key, value string) func(*v1.VirtualMachineInstance) {
	return func(vmi *v1.VirtualMachineInstance) { vmi.Labels[key] = value }
}

func status(st v1.VirtualMachineInstanceStatus) func(*v1.VirtualMachineInstance) {
	return func(vmi *v1.VirtualMachineInstance) { vmi.Status = st }
}

// testForgedGuests creates guests that claim to be somewhere.
func (w *world) testForgedGuests(t *testing.T) {
	defaults := v1.VirtualMachineInstanceStatus{
		Phase: v1.Pending, RuntimeUser: 107,
		PhaseTransitionTimestamps: []v1.VirtualMachineInstancePhaseTransitionTimestamp{{Phase: v1.Pending, PhaseTransitionTimestamp: metav1.Now()}},
	}
	for name, tt := range map[string]struct {
		edit   func(*v1.VirtualMachineInstance)
		denied string
	}{
		"a plain one": {},
		"what the webhooks fill in": {edit: func(vmi *v1.VirtualMachineInstance) {
			vmi.Finalizers, vmi.Status = []string{v1.VirtualMachineInstanceFinalizer}, defaults
		}},
		"labels of its own":           {edit: labelled("kubevirt.io/domain", "web")},
		"an annotation of KubeVirt's": {edit: annotation(v1.IgnitionAnnotation, "{}")},
		"on a node":                   {edit: labelled(v1.NodeNameLabel, nodeA), denied: "metadata.labels: kubevirt.io/nodeName: reserved"},
		"moving to a node":            {edit: labelled(v1.MigrationTargetNodeNameLabel, nodeA), denied: "metadata.labels: kubevirt.io/migrationTargetNodeName"},
		"a label of ours":             {edit: labelled("virtloom.dev/any", ""), denied: "metadata.labels: virtloom.dev/any"},
		"with a lease":                {edit: annotation(handoff.Annotation, `{"state":"Offered"}`), denied: "metadata.annotations: virtloom.dev/handoff: reserved"},
		"with a trace":                {edit: annotation("virtloom.dev/traceparent", "x"), denied: "metadata.annotations: virtloom.dev/traceparent"},
		"a receiver":                  {edit: annotation(v1.CreateMigrationTarget, "true"), denied: "kubevirt.io/create-migration-target"},
		"asked to leave":              {edit: annotation(v1.EvictionSourceAnnotation, "x"), denied: "kubevirt.io/eviction-source"},
		"scheduled":                   {edit: status(v1.VirtualMachineInstanceStatus{Phase: v1.Scheduled}), denied: "status: phase: written by the control plane alone; leave it out"},
		"with a node in its status":   {edit: status(v1.VirtualMachineInstanceStatus{NodeName: nodeA}), denied: "status: nodeName"},
		"as another user":             {edit: status(v1.VirtualMachineInstanceStatus{RuntimeUser: 1}), denied: "status: runtimeUser"},
		"with a past": {edit: status(v1.VirtualMachineInstanceStatus{PhaseTransitionTimestamps: []v1.VirtualMachineInstancePhaseTransitionTimestamp{
			{Phase: v1.Running, PhaseTransitionTimestamp: metav1.Now()}}}), denied: "status: phaseTransitionTimestamps"},
	} {
		t.Run(name, func(t *testing.T) {
			vmi := bare("created")
			if tt.edit != nil {
				tt.edit(vmi)
			}
			for _, who := range []string{person, lookalike, neighbour} {
				check(t, w.try(t, who, vmi), tt.denied)
			}
			for _, who := range []string{rig.UserAdmin, virtController} {
				check(t, w.try(t, who, vmi), "")
			}
		})
	}
}

// running is a guest with all that the control plane writes.
func running(vmi *v1.VirtualMachineInstance) {
	vmi.Finalizers = []string{v1.VirtualMachineInstanceFinalizer, "example.com/mine"}
	vmi.Labels[v1.NodeNameLabel], vmi.Labels[v1.OutdatedLauncherImageLabel] = nodeA, ""
	metav1.SetMetaDataAnnotation(&vmi.ObjectMeta, handoff.Annotation, `{"state":"Running"}`)
	metav1.SetMetaDataAnnotation(&vmi.ObjectMeta, v1.EvictionSourceAnnotation, "x")
	vmi.Status = v1.VirtualMachineInstanceStatus{Phase: v1.Running, NodeName: nodeA, ActivePods: map[types.UID]string{"u": nodeA}}
}

// testForgedChanges has a user change a guest.
func (w *world) testForgedChanges(t *testing.T) {
	for name, tt := range map[string]struct{ patch, denied string }{
		"labels and annotations of its own": {patch: `{"metadata":{"labels":{"app":"db","kubevirt.io/domain":"x"},"annotations":{"example.com/note":"x"}}}`},
		"its own finalizer":                 {patch: `{"metadata":{"finalizers":["kubevirt.io/foregroundDeleteVirtualMachine"]}}`},
		"another node":                      {patch: `{"metadata":{"labels":{"kubevirt.io/nodeName":"sim-1"}}}`, denied: "metadata.labels: kubevirt.io/nodeName"},
		"no node":                           {patch: `{"metadata":{"labels":{"kubevirt.io/nodeName":null}}}`, denied: "metadata.labels: kubevirt.io/nodeName"},
		"a target":                          {patch: `{"metadata":{"labels":{"kubevirt.io/migrationTargetNodeName":"sim-1"}}}`, denied: "kubevirt.io/migrationTargetNodeName"},
		"no outdated launcher":              {patch: `{"metadata":{"labels":{"kubevirt.io/outdatedLauncherImage":null}}}`, denied: "kubevirt.io/outdatedLauncherImage"},
		"another lease":                     {patch: `{"metadata":{"annotations":{"virtloom.dev/handoff":"{}"}}}`, denied: "metadata.annotations: virtloom.dev/handoff"},
		"no lease":                          {patch: `{"metadata":{"annotations":{"virtloom.dev/handoff":null}}}`, denied: "metadata.annotations: virtloom.dev/handoff"},
		"no annotations":                    {patch: `{"metadata":{"annotations":null}}`, denied: "metadata.annotations: "},
		"a receiver":                        {patch: `{"metadata":{"annotations":{"kubevirt.io/create-migration-target":"true"}}}`, denied: "kubevirt.io/create-migration-target"},
		"no eviction":                       {patch: `{"metadata":{"annotations":{"kubevirt.io/eviction-source":null}}}`, denied: "kubevirt.io/eviction-source"},
		"no finalizers":                     {patch: `{"metadata":{"finalizers":null}}`, denied: "metadata.finalizers: the finalizer of a guest"},
		"the finalizer of before":           {patch: `{"metadata":{"finalizers":["kubevirt.io/foregroundDeleteVirtualMachine","foregroundDeleteVirtualMachine"]}}`, denied: "metadata.finalizers"},
		"another phase":                     {patch: `{"status":{"phase":"Failed"}}`, denied: "status: phase: written by the control plane alone; leave it as it is"},
		"no node in the status":             {patch: `{"status":{"nodeName":null}}`, denied: "status: nodeName"},
		"no status":                         {patch: `{"status":null}`, denied: "status: "},
		"an evacuation":                     {patch: `{"status":{"evacuationNodeName":"sim-0"}}`, denied: "status: evacuationNodeName"},
		"other Pods":                        {patch: `{"status":{"activePods":{"v":"sim-1"}}}`, denied: "status: activePods"},
	} {
		t.Run(name, func(t *testing.T) {
			vmi := bare("changed", running)
			w.create(t, vmi)
			for who, denied := range map[string]string{person: tt.denied, lookalike: tt.denied, neighbour: tt.denied, collector: tt.denied,
				rig.UserController: "", virtController: "", virtHandler: "", rig.UserAdmin: ""} {
				check(t, w.as(t, w.by(who)).Patch(t.Context(), vmi.DeepCopy(), client.RawPatch(types.MergePatchType, []byte(tt.patch)), client.DryRunAll), denied)
			}
		})
	}
	t.Run("an agent changes what it may", func(t *testing.T) {
		vmi := bare("reported", running)
		w.create(t, vmi)
		for _, who := range []string{nodeA, podOnA} {
			check(t, w.as(t, w.by(who)).Patch(t.Context(), vmi.DeepCopy(), client.RawPatch(types.MergePatchType, []byte(`{"status":{"reason":"x"}}`))), "")
		}
	})
	t.Run("the life of one", w.testALife)
}

// testALife has a user do with a guest what users do.
func (w *world) testALife(t *testing.T) {
	c := w.as(t, w.by(person))
	vmi := bare("life")
	must(t, c.Create(t.Context(), vmi))
	// As the controllers leave it: a client in Go writes out empty fields that they do not write.
	must(t, w.Patch(t.Context(), vmi, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":["kubevirt.io/foregroundDeleteVirtualMachine"]},"status":{"guestOSInfo":null,"runtimeUser":null,"phase":"Running"}}`))))
	must(t, c.Get(t.Context(), client.ObjectKeyFromObject(vmi), vmi))
	vmi.Labels["tier"] = "front"
	must(t, c.Update(t.Context(), vmi))
	manifest := object(t, `{"apiVersion":"kubevirt.io/v1","kind":"VirtualMachineInstance","metadata":{"namespace":"tenant","name":"life","labels":{"applied":"yes"}},"spec":{"domain":{"devices":{}}}}`)
	for range 2 {
		must(t, c.Apply(t.Context(), client.ApplyConfigurationFromUnstructured(manifest.DeepCopy()), client.FieldOwner("jane"), client.ForceOwnership))
	}
	must(t, c.Delete(t.Context(), vmi))
	must(t, c.Get(t.Context(), client.ObjectKeyFromObject(vmi), vmi))
	vmi.Finalizers = nil
	check(t, c.Update(t.Context(), vmi), "metadata.finalizers")
	must(t, w.as(t, w.by(rig.UserController)).Patch(t.Context(), vmi, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`))))
}
