// SPDX-License-Identifier: Apache-2.0

package webhook_test

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	v1 "kubevirt.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/virtloom/virtloom/handoff"
	"github.com/virtloom/virtloom/internal/rig"
	"github.com/virtloom/virtloom/internal/rig/rigtest"
	"github.com/virtloom/virtloom/refdaemon/config"
)

// kubeVirtsRule is what KubeVirt's webhook for changes of VirtualMachineInstances does: status is put back unless it comes from an
// account of KubeVirt's.
const kubeVirtsRule = `
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingAdmissionPolicy
metadata:
  name: status-of-kubevirt
spec:
  failurePolicy: Fail
  reinvocationPolicy: Never
  matchConstraints:
    resourceRules:
    - apiGroups: [kubevirt.io]
      apiVersions: ["*"]
      operations: [UPDATE]
      resources: [virtualmachineinstances]
  matchConditions:
  - name: not-by-kubevirt
    expression: >-
      !(request.userInfo.username in ['system:serviceaccount:kubevirt:kubevirt-apiserver', 'system:serviceaccount:kubevirt:kubevirt-controller',
      'system:serviceaccount:kubevirt:kubevirt-handler', 'system:serviceaccount:kubevirt:kubevirt-synchronization-controller'])
  mutations:
  - patchType: JSONPatch
    jsonPatch:
      expression: >-
        has(oldObject.status) ? [JSONPatch{op: "add", path: "/status", value: oldObject.status}]
        : has(object.status) ? [JSONPatch{op: "remove", path: "/status"}] : []
---
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingAdmissionPolicyBinding
metadata:
  name: status-of-kubevirt
spec:
  policyName: status-of-kubevirt
`

// TestBesideKubeVirt_Accounts: beside KubeVirt's webhooks a controller and agents under KubeVirt's accounts write status, with the
// rights of our roles; under their own they do not.
func TestBesideKubeVirt_Accounts(t *testing.T) {
	w := &world{Rig: rigtest.Start(t, rig.Options{SimulatedNodes: 1})}
	w.Client = w.as(t, rig.UserAdmin)
	must(t, w.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "kubevirt"}}))
	controller, handler := w.account(t, "kubevirt-controller", "virtloom-controller"), w.account(t, "kubevirt-handler", "virtloom-node")
	vmi := guest("kept", "64Mi")
	must(t, w.Create(t.Context(), vmi))
	rule, err := config.Decode(strings.NewReader(kubeVirtsRule))
	must(t, err)
	for _, o := range rule {
		must(t, w.Create(t.Context(), o))
	}
	note := func(c client.Client, reason string) error {
		return c.Patch(t.Context(), vmi, client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"status":{"reason":%q}}`, reason)))
	}
	own := w.as(t, rig.UserController)
	var last error // the API server does not know the rule's kind at once
	t.Cleanup(func() {
		if t.Failed() && last != nil {
			t.Logf("the last answer: %v", last)
		}
	})
	w.await(t, "KubeVirt's rule to be in force", func(context.Context) (bool, error) {
		last = note(own, "own")
		if inForce := vmi.Status.Reason == ""; last == nil && !inForce {
			last = note(w.of(t, controller), "")
			return false, nil
		}
		return last == nil, nil
	})
	for name, c := range map[string]*rest.Config{"kubevirt-controller": controller, "kubevirt-handler": handler} {
		if err := note(w.of(t, c), name); err != nil || vmi.Status.Reason != name {
			t.Errorf("%s: status %+v, %v", name, vmi.Status, err)
		}
	}
	binary := build(t, t.TempDir())
	_, err = w.Run("refdaemon-controller", exec.Command(binary, "controller", "--kubeconfig", kubeconfig(t, controller), "--leader-elect=false"))
	must(t, err)
	w.await(t, "the controller to write status", func(ctx context.Context) (bool, error) {
		err := w.Get(ctx, client.ObjectKeyFromObject(vmi), vmi)
		return vmi.Status.Phase == v1.Scheduling || vmi.Annotations[handoff.Annotation] != "", err
	})
}

// account is a service account of KubeVirt's that has the rights of one of our roles.
func (w *world) account(t *testing.T, name, role string) *rest.Config {
	t.Helper()
	const namespace = "kubevirt"
	must(t, w.Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}))
	must(t, w.Create(t.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: name}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
		Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: namespace, Name: name}},
	}))
	c, err := kubernetes.NewForConfig(w.Config(rig.UserAdmin))
	must(t, err)
	token, err := c.CoreV1().ServiceAccounts(namespace).CreateToken(t.Context(), name, &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	must(t, err)
	config := rest.AnonymousClientConfig(w.Config(rig.UserAdmin))
	config.BearerToken = token.Status.Token
	return config
}

// of is a client with a configuration.
func (w *world) of(t *testing.T, config *rest.Config) client.Client {
	t.Helper()
	c, err := client.New(config, client.Options{Scheme: w.Scheme()})
	must(t, err)
	return c
}

// kubeconfig writes a configuration to a file.
func kubeconfig(t *testing.T, config *rest.Config) string {
	t.Helper()
	c := clientcmdapi.NewConfig()
	c.Clusters["c"] = &clientcmdapi.Cluster{Server: config.Host, CertificateAuthorityData: config.CAData}
	c.AuthInfos["u"] = &clientcmdapi.AuthInfo{Token: config.BearerToken}
	c.Contexts["c"] = &clientcmdapi.Context{Cluster: "c", AuthInfo: "u"}
	c.CurrentContext = "c"
	path := filepath.Join(t.TempDir(), "kubeconfig")
	must(t, clientcmd.WriteToFile(*c, path))
	return path
}
