// SPDX-License-Identifier: Apache-2.0

package rbac_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	v1 "kubevirt.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/virtloom/virtloom/internal/rig"
	"github.com/virtloom/virtloom/internal/rig/rigtest"
	"github.com/virtloom/virtloom/refdaemon/config/rbac"
)

// The nodes of the cluster, and identities that are not one of their agents' certificates.
const (
	nodeA = "sim-0"
	nodeB = "sim-1"
	// podOnA and podOnB are tokens of the agents' service account, bound to a Pod there.
	podOnA = "token on " + nodeA
	podOnB = "token on " + nodeB
	// nowhere is such a token that is bound to nothing.
	nowhere = "token"
	// ofNoNode is a user whose name ends where that of a node should begin.
	ofNoNode = "certificate of no node"
)

// patience bounds waiting for a policy to be in force.
const patience = time.Minute

// world is a cluster with two nodes, whose agents are only the requests a test makes.
type world struct {
	*rig.Rig
	client.Client
	scheme *runtime.Scheme
	agents map[string]*rest.Config
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{Rig: rigtest.Start(t, rig.Options{SimulatedNodes: 2}), scheme: runtime.NewScheme()}
	must(t, errors.Join(clientgoscheme.AddToScheme(w.scheme), v1.AddToScheme(w.scheme)))
	w.Client = w.as(t, w.Config(rig.UserAdmin))
	w.agents = map[string]*rest.Config{
		nodeA: w.Config(rig.NodeUser(nodeA)), nodeB: w.Config(rig.NodeUser(nodeB)),
		podOnA: w.token(t, nodeA), podOnB: w.token(t, nodeB), nowhere: w.token(t, ""), ofNoNode: w.Config(rig.NodeUser("")),
	}
	w.awaitPolicies(t)
	return w
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func (w *world) as(t *testing.T, config *rest.Config) client.Client {
	t.Helper()
	c, err := client.New(config, client.Options{Scheme: w.scheme})
	must(t, err)
	return c
}

// token is an identity of the agents' service account, with the token of a Pod on the node if one is
// named.
func (w *world) token(t *testing.T, node string) *rest.Config {
	t.Helper()
	c, err := kubernetes.NewForConfig(w.Config(rig.UserAdmin))
	must(t, err)
	request := &authenticationv1.TokenRequest{}
	if node != "" {
		pod := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: rbac.NodeNamespace, Name: "agent-" + node},
			Spec: corev1.PodSpec{
				ServiceAccountName: "virtloom-node", NodeName: node,
				Containers: []corev1.Container{{Name: "agent", Image: "virtloom.test/agent:1"}},
			},
		}
		must(t, w.Create(t.Context(), pod))
		request.Spec.BoundObjectRef = &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID}
	}
	answer, err := c.CoreV1().ServiceAccounts(rbac.NodeNamespace).CreateToken(t.Context(), "virtloom-node", request, metav1.CreateOptions{})
	must(t, err)
	config := rest.AnonymousClientConfig(w.Config(rig.UserAdmin))
	config.BearerToken = answer.Status.Token
	return config
}

// awaitPolicies waits until both policies are in force.
func (w *world) awaitPolicies(t *testing.T) {
	t.Helper()
	foreign := w.as(t, w.agents[ofNoNode])
	vmi := &v1.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: "foreign"}}
	must(t, w.Create(t.Context(), vmi))
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeA}}
	for _, o := range []client.Object{vmi, node} {
		label := client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"labels":{"example.com/touched":"yes"}}}`))
		must(t, rigtest.Poll(t.Context(), patience, func(ctx context.Context) (bool, error) {
			err := foreign.Patch(ctx, o.DeepCopyObject().(client.Object), label, client.DryRunAll)
			if apierrors.IsForbidden(err) {
				return true, nil
			}
			return false, err
		}))
	}
}

// check compares the answer to a request with what it should be: allowed, or denied for a reason.
func check(t *testing.T, err error, denied string) {
	t.Helper()
	switch {
	case denied == "" && err != nil:
		t.Errorf("denied: %v", err)
	case denied == "":
	case err == nil:
		t.Errorf("allowed, want it denied: %s", denied)
	case !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), denied):
		t.Errorf("got %v, want it denied: %s", err, denied)
	}
}

// object reads an object.
func object(t *testing.T, text string) *unstructured.Unstructured {
	t.Helper()
	o := &unstructured.Unstructured{}
	must(t, o.UnmarshalJSON([]byte(text)))
	return o
}

// await waits for what the cluster will come to.
func await(t *testing.T, what string, ok func() bool) {
	t.Helper()
	err := rigtest.Poll(t.Context(), patience, func(context.Context) (bool, error) { return ok(), nil })
	if err != nil {
		t.Fatalf("waiting for %s: %v", what, err)
	}
}
