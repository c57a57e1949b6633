// SPDX-License-Identifier: Apache-2.0

package rbac_test

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	v1 "kubevirt.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/virtloom/virtloom/internal/rig"
	"github.com/virtloom/virtloom/refdaemon/config/rbac"
)

// TestRoles_LeastPrivilege asks a real API server, with the daemons' own credentials.
func TestRoles_LeastPrivilege(t *testing.T) {
	w := newWorld(t)
	t.Run("guests", w.testGuests)
	t.Run("nodes", w.testNodes)
	t.Run("nodes, by the controller", w.testController)
	t.Run("migrations", w.testMigrations)
	t.Run("roles", w.testRoles)
	t.Run("strangers", w.testStrangers)
}

// testNodes has an agent write to Nodes.
func (w *world) testNodes(t *testing.T) {
	const foreign = "changes no other Node"
	everything, err := json.Marshal(map[string]any{"metadata": map[string]any{"labels": labelsOfARealNode(t)}})
	must(t, err)
	for name, r := range map[string]struct {
		by, node, patch, denied string
	}{
		"its heartbeat":             {patch: `{"metadata":{"labels":{"kubevirt.io/schedulable":"true"},"annotations":{"kubevirt.io/heartbeat":"2026-01-02T03:04:05Z","virtloom.dev/heartbeat":"2026-01-02T03:04:05Z"}}}`},
		"what it lacks":             {patch: `{"metadata":{"annotations":{"virtloom.dev/problems":"[]"}}}`},
		"what another lacks":        {node: nodeB, patch: `{"metadata":{"annotations":{"virtloom.dev/problems":"[]"}}}`, denied: foreign},
		"its Pod's heartbeat":       {by: podOnA, patch: `{"metadata":{"labels":{"kubevirt.io/schedulable":"false"}}}`},
		"what CPUs it has":          {patch: `{"metadata":{"labels":{"cpu-model.node.kubevirt.io/Penryn":"true","cpu-feature.node.kubevirt.io/aes":"true","kubevirt.io/cpumanager":"false","cpumanager":"false"}}}`},
		"all that a real node can":  {patch: string(everything)},
		"a model that is obsolete":  {patch: `{"metadata":{"labels":{"node-labeller.kubevirt.io/obsolete-host-model":"true"},"annotations":{"node-labeller.kubevirt.io/obsolete-host-model":"old"}}}`},
		"another's heartbeat":       {node: nodeB, patch: `{"metadata":{"labels":{"kubevirt.io/schedulable":"true"}}}`, denied: foreign},
		"another Pod's heartbeat":   {by: podOnB, patch: `{"metadata":{"labels":{"kubevirt.io/schedulable":"true"}}}`, denied: foreign},
		"of no node":                {by: nowhere, patch: `{"metadata":{"labels":{"kubevirt.io/schedulable":"true"}}}`, denied: foreign},
		"a taint":                   {patch: `{"spec":{"taints":[{"key":"kubevirt.io/drain","effect":"NoSchedule"}]}}`, denied: "neither taints nor"},
		"unschedulable":             {patch: `{"spec":{"unschedulable":true}}`, denied: "neither taints nor"},
		"a label of others":         {patch: `{"metadata":{"labels":{"topology.kubernetes.io/zone":"a"}}}`, denied: noLabels},
		"its role":                  {patch: `{"metadata":{"labels":{"node-role.kubernetes.io/control-plane":""}}}`, denied: noLabels},
		"a label that looks own":    {patch: `{"metadata":{"labels":{"example.com/kubevirt.io":"x"}}}`, denied: noLabels},
		"a label removed":           {patch: `{"metadata":{"labels":{"kubernetes.io/hostname":null}}}`, denied: noLabels},
		"an annotation of others":   {patch: `{"metadata":{"annotations":{"node.alpha.kubernetes.io/ttl":"7"}}}`, denied: noNotes},
		"that it shall be labelled": {patch: `{"metadata":{"annotations":{"node-labeller.kubevirt.io/skip-node":"false"}}}`, denied: noNotes},
		"a finalizer":               {patch: `{"metadata":{"finalizers":["example.com/stay"]}}`, denied: "neither finalizers nor owners"},
	} {
		t.Run(name, func(t *testing.T) {
			node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: cmp.Or(r.node, nodeA)}}
			c := w.as(t, w.agents[cmp.Or(r.by, nodeA)])
			check(t, c.Patch(t.Context(), node, client.RawPatch(types.MergePatchType, []byte(r.patch))), r.denied)
		})
	}
}

// testController has the controller write to Nodes.
func (w *world) testController(t *testing.T) {
	const noLabel = "no label of a Node but"
	nodes := w.as(t, w.Config(rig.UserController))
	write := func(patch string) error {
		return nodes.Patch(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeB}}, client.RawPatch(types.MergePatchType, []byte(patch)))
	}
	// Else the value that the controller may not write is the one that there is.
	check(t, write(`{"metadata":{"labels":{"kubevirt.io/schedulable":"false"}}}`), "")
	for name, r := range map[string]struct{ patch, denied string }{
		"that it takes guests": {patch: `{"metadata":{"labels":{"kubevirt.io/schedulable":"true"}}}`, denied: noLabel},
		"another label":        {patch: `{"metadata":{"labels":{"topology.kubernetes.io/zone":"a"}}}`, denied: noLabel},
		"a label removed":      {patch: `{"metadata":{"labels":{"kubernetes.io/hostname":null}}}`, denied: noLabel},
		"a taint":              {patch: `{"spec":{"taints":[{"key":"node.kubernetes.io/out-of-service","effect":"NoExecute"}]}}`, denied: "but a label"},
		"a heartbeat":          {patch: `{"metadata":{"annotations":{"kubevirt.io/heartbeat":"2026-01-02T03:04:05Z"}}}`, denied: "but a label"},
		"a finalizer":          {patch: `{"metadata":{"finalizers":["example.com/stay"]}}`, denied: "but a label"},
	} {
		t.Run(name, func(t *testing.T) { check(t, write(r.patch), r.denied) })
	}
}

// labelsOfARealNode are those that the labeller finds.
func labelsOfARealNode(t *testing.T) map[string]string {
	t.Helper()
	dir := filepath.Join("..", "..", "..", "domain", "nodectrl", "testdata", "x86_64")
	text, err := os.ReadFile(filepath.Join(dir, "labels.json"))
	must(t, err)
	all := map[string]string{}
	must(t, json.Unmarshal(text, &all))
	for _, key := range []string{v1.RealtimeLabel, v1.SEVLabel, v1.SEVESLabel, v1.SEVSNPLabel, v1.TDXLabel, v1.SecureExecutionLabel, v1.VMArchLabel + "amd64"} {
		all[key] = "true"
	}
	return all
}

// testRoles asks the authorizer. A right is verb, group/resource or group/resource/subresource, and
// namespace/name where it matters.
func (w *world) testRoles(t *testing.T) {
	identities := map[string]*rest.Config{"agent": w.agents[nodeA], "agent's Pod": w.agents[podOnA], "controller": w.Config(rig.UserController)}
	agent := map[bool][]string{
		true: {
			"get,list,watch,patch kubevirt.io/virtualmachineinstances", "list kubevirt.io/kubevirts", "get,patch /nodes",
			"get /configmaps", "get /persistentvolumeclaims", "get /persistentvolumes", "create,patch events.k8s.io/events",
			"get,list,watch /pods", "create,get certificates.k8s.io/certificatesigningrequests",
		},
		false: {
			"create,update,delete,deletecollection kubevirt.io/virtualmachineinstances", "patch,update kubevirt.io/virtualmachineinstances/status",
			"get,list,patch kubevirt.io/virtualmachineinstancemigrations", "patch,update kubevirt.io/kubevirts",
			"list,watch,create,update,delete /nodes", "patch,update /nodes/status", "create,patch,update,delete /pods", "create /pods/exec",
			"get,list,watch,create,patch,update,delete /secrets", "list,watch,create,patch,update /configmaps", "list,patch /persistentvolumeclaims",
			"list,patch,create /persistentvolumes", "list /namespaces", "create /serviceaccounts/token",
			"list,watch,patch,update,delete certificates.k8s.io/certificatesigningrequests", "update certificates.k8s.io/certificatesigningrequests/approval",
			"approve,sign certificates.k8s.io/signers /virtloom.dev/node-agent", "get /secrets virtloom-system/virtloom-node-authority", "update,patch /configmaps virtloom-node/virtloom-node-authorities", "get,create,update coordination.k8s.io/leases",
			"patch admissionregistration.k8s.io/validatingadmissionpolicies", "patch rbac.authorization.k8s.io/clusterroles",
			"impersonate /users", "impersonate /groups",
		},
	}
	controller := map[bool][]string{
		true: {
			"get,list,watch,create,patch,delete kubevirt.io/virtualmachineinstances", "get,list,watch,create,patch,delete kubevirt.io/virtualmachineinstancemigrations",
			"get,list,watch,patch kubevirt.io/virtualmachines", "patch kubevirt.io/virtualmachines/status", "get,list,watch,create,delete apps/controllerrevisions",
			"list,watch instancetype.kubevirt.io/virtualmachineclusterinstancetypes", "create authorization.k8s.io/subjectaccessreviews",
			"patch kubevirt.io/virtualmachineinstancemigrations/status", "patch kubevirt.io/kubevirts/status", "create /pods/eviction", "list,watch migrations.kubevirt.io/migrationpolicies",
			"get,list,watch,create,delete /pods", "patch /pods/status", "get,list,watch,patch /nodes", "get /configmaps",
			"create,patch events.k8s.io/events", "get,update coordination.k8s.io/leases virtloom-system/virtloom-controller",
			"get,update /secrets virtloom-system/virtloom-node-authority", "get,update /configmaps virtloom-node/virtloom-node-authorities",
			"update certificates.k8s.io/certificatesigningrequests/approval", "update certificates.k8s.io/certificatesigningrequests/status",
			"get,create,patch,delete admissionregistration.k8s.io/validatingadmissionpolicies /virtloom-guests-exist",
		},
		false: {
			"update,deletecollection kubevirt.io/virtualmachineinstances", "create,update,delete kubevirt.io/virtualmachines", "get,list /secrets", "list /configmaps",
			"create,patch,update,delete instancetype.kubevirt.io/virtualmachineinstancetypes", "create,update,delete /nodes", "patch /nodes/status",
			"update coordination.k8s.io/leases virtloom-system/other", "create coordination.k8s.io/leases kube-system/x",
			"approve,sign certificates.k8s.io/signers /kubernetes.io", "create certificates.k8s.io/certificatesigningrequests", "update /secrets virtloom-system/other",
			"get,create,patch,delete admissionregistration.k8s.io/validatingadmissionpolicies /virtloom-guests", "create admissionregistration.k8s.io/validatingadmissionpolicybindings",
			"create /pods/exec", "patch,update kubevirt.io/kubevirts", "patch rbac.authorization.k8s.io/clusterroles", "impersonate /users",
		},
	}
	for who, table := range map[string]map[bool][]string{"agent": agent, "agent's Pod": agent, "controller": controller} {
		c, err := kubernetes.NewForConfig(identities[who])
		must(t, err)
		for allowed, rights := range table {
			for _, right := range rights {
				for _, attributes := range attributesOf(t, right) {
					t.Run(fmt.Sprintf("%s may %s %s: %t", who, attributes.Verb, right, allowed), func(t *testing.T) {
						if got := mayDo(t.Context(), t, c, attributes); got != allowed {
							t.Errorf("%+v: %t", attributes, got)
						}
					})
				}
			}
		}
	}
}

func attributesOf(t *testing.T, right string) []*authorizationv1.ResourceAttributes {
	t.Helper()
	words := strings.Fields(right)
	what := strings.Split(words[1], "/")
	a := authorizationv1.ResourceAttributes{Namespace: metav1.NamespaceDefault, Group: what[0], Resource: what[1], Version: "*"}
	if len(what) > 2 {
		a.Subresource = what[2]
	}
	if len(words) > 2 {
		a.Namespace, a.Name, _ = strings.Cut(words[2], "/")
	}
	var all []*authorizationv1.ResourceAttributes
	for _, verb := range strings.Split(words[0], ",") {
		one := a
		one.Verb = verb
		all = append(all, &one)
	}
	return all
}

func mayDo(ctx context.Context, t *testing.T, c kubernetes.Interface, a *authorizationv1.ResourceAttributes) bool {
	t.Helper()
	review := &authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: a}}
	answer, err := c.AuthorizationV1().SelfSubjectAccessReviews().Create(ctx, review, metav1.CreateOptions{})
	must(t, err)
	return answer.Status.Allowed
}

// testStrangers makes sure that the policies hold for agents with too many rights, and for no other
// client.
func (w *world) testStrangers(t *testing.T) {
	for name, role := range map[string]string{"too-many-rights": "cluster-admin"} {
		binding := fmt.Sprintf(`{"apiVersion":"rbac.authorization.k8s.io/v1","kind":"ClusterRoleBinding","metadata":{"name":%q},
			"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":%q},
			"subjects":[{"kind":"Group","apiGroup":"rbac.authorization.k8s.io","name":%q}]}`, name, role, rbac.NodesGroup)
		must(t, w.Create(t.Context(), object(t, binding)))
	}
	agent := w.as(t, w.agents[nodeA])
	clientset, err := kubernetes.NewForConfig(w.agents[nodeA])
	must(t, err)
	deletes := &authorizationv1.ResourceAttributes{Verb: "delete", Resource: "nodes"}
	await(t, "the agent to have too many rights", func() bool { return mayDo(t.Context(), t, clientset, deletes) })

	vmi := newGuest(t, "held")
	check(t, agent.Create(t.Context(), vmi.DeepCopy()), "it neither creates nor deletes them")
	must(t, w.Create(t.Context(), vmi))
	check(t, agent.Delete(t.Context(), vmi.DeepCopy()), "it neither creates nor deletes them")
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeA}}
	check(t, agent.Delete(t.Context(), node.DeepCopy()), "it neither creates nor deletes it")
	healthy := client.RawPatch(types.MergePatchType, []byte(`{"status":{"capacity":{"example.com/gold":"1"}}}`))
	check(t, agent.Status().Patch(t.Context(), node.DeepCopy(), healthy), "nor writes its status")

	controller := w.as(t, w.Config(rig.UserController))
	want := vmi.DeepCopy()
	want.Labels[v1.MigrationTargetNodeNameLabel], want.Finalizers = nodeB, nil
	check(t, controller.Patch(t.Context(), want, client.MergeFrom(vmi)), "")
}
