// SPDX-License-Identifier: Apache-2.0

package config_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	v1 "kubevirt.io/api/core/v1"
	migrationsv1 "kubevirt.io/api/migrations/v1alpha1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/virtloom/virtloom/internal/rig"
	"github.com/virtloom/virtloom/internal/rig/rigtest"
	"github.com/virtloom/virtloom/refdaemon/config/rbac"
)

// patience bounds waiting for what the cluster comes to.
const patience = 2 * time.Minute

// nodes is how many the cluster has.
const nodes = 2

// world is a cluster in which everything is installed, and where simulated nodes play the kubelets.
type world struct {
	*rig.Rig
	client.Client
	clientset kubernetes.Interface
	manifests map[string]*workload
	binary    string
	// scraper is a token that may be shown for metrics.
	scraper string
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{
		Rig: rigtest.Start(t, rig.Options{
			SimulatedNodes: nodes, Controllers: []string{"deployment-controller", "replicaset-controller", "daemonset-controller"},
			// Who names an owner that it is to hold has to have the right to hold it.
			AdmissionPlugins: []string{"OwnerReferencesPermissionEnforcement"},
		}),
		manifests: workloads(t, objects(t, "default")), binary: refdaemon(t),
	}
	scheme := runtime.NewScheme()
	must(t, errors.Join(clientgoscheme.AddToScheme(scheme), v1.AddToScheme(scheme), migrationsv1.AddToScheme(scheme)))
	var err error
	w.Client, err = client.New(w.Config(rig.UserAdmin), client.Options{Scheme: scheme})
	must(t, err)
	w.clientset, err = kubernetes.NewForConfig(w.Config(rig.UserAdmin))
	must(t, err)
	return w
}

// await waits for what the cluster will come to, and says what it has come to if it does not.
func (w *world) await(t *testing.T, what string, ok func(context.Context) error) {
	t.Helper()
	var last error
	err := rigtest.Poll(t.Context(), patience, func(ctx context.Context) (bool, error) {
		last = ok(ctx)
		return last == nil, nil
	})
	if err != nil {
		t.Fatalf("waiting for %s: %v", what, last)
	}
}

// apply has kubectl apply manifests on the server, with every field checked; a warning is an error.
func (w *world) apply(t *testing.T, text []byte, flags ...string) {
	t.Helper()
	bin, err := rig.BinDir()
	must(t, err)
	cmd := exec.CommandContext(t.Context(), filepath.Join(bin, "kubectl"), append([]string{
		"--kubeconfig", w.Kubeconfig(rig.UserAdmin), "apply", "--server-side", "--validate=strict", "--force-conflicts", "-f", "-"}, flags...)...)
	cmd.Stdin = bytes.NewReader(text)
	if out, err := cmd.CombinedOutput(); err != nil || strings.Contains(string(out), "Warning") {
		t.Fatalf("%v: %v\n%s", cmd.Args, err, out)
	}
}

// TestManifests_InCluster installs everything in a real control plane and runs the daemons with the accounts of their Pods.
func TestManifests_InCluster(t *testing.T) {
	w := newWorld(t)
	flat, err := exec.CommandContext(t.Context(), w.binary, "manifests").Output()
	must(t, err)
	w.apply(t, flat)
	if !t.Run("every Pod is admitted", w.testPods) {
		t.FailNow()
	}
	w.scraper = w.account(t, "scraper", "virtloom-metrics-reader")
	t.Run("twice is once", func(t *testing.T) { w.apply(t, flat) })
	t.Run("with webhooks", w.testComplete)
	t.Run("no Pod beside has privileges", w.testStranger)
	t.Run("no account has a token of its own", w.testAccounts)
	t.Run("one replica leads, the other takes over", w.testElection)
	t.Run("the daemons have all their rights", w.testRights)
	t.Run("a drained node leaves one replica", w.testBudget)
	t.Run("it is not removed under guests", func(t *testing.T) { w.testRemoval(t, flat) })
}

// testComplete asks about what needs cert-manager without having it.
func (w *world) testComplete(t *testing.T) {
	var text []byte
	for _, o := range objects(t, "complete") {
		if strings.HasPrefix(o.GetAPIVersion(), "cert-manager.io/") {
			continue
		}
		document, err := yaml.Marshal(o.Object)
		must(t, err)
		text = append(append(text, "---\n"...), document...)
	}
	w.apply(t, text, "--dry-run=server")
}

// testPods waits for Pods, which policies of security or missing names would keep away.
func (w *world) testPods(t *testing.T) {
	for _, name := range []string{"controller", "node"} {
		w.await(t, "Pods of "+name, func(ctx context.Context) error {
			pods, err := w.pods(ctx, name)
			if err != nil || len(pods) != nodes {
				return fmt.Errorf("%d Pods, %w", len(pods), err)
			}
			on := map[string]bool{}
			for i := range pods {
				if pods[i].Status.Phase != corev1.PodRunning {
					return fmt.Errorf("%s is %s: %v", pods[i].Name, pods[i].Status.Phase, pods[i].Status.Conditions)
				}
				on[pods[i].Spec.NodeName] = true
			}
			if len(on) != nodes {
				return fmt.Errorf("all are on %v", on)
			}
			return nil
		})
	}
	w.await(t, "the workloads to be complete", func(ctx context.Context) error {
		var d appsv1.Deployment
		var s appsv1.DaemonSet
		err := errors.Join(w.Get(ctx, w.key("controller"), &d), w.Get(ctx, w.key("node"), &s))
		if err != nil || d.Status.AvailableReplicas != 2 || s.Status.NumberReady != nodes {
			return fmt.Errorf("%+v %+v %w", d.Status, s.Status, err)
		}
		return nil
	})
}

func (w *world) key(name string) client.ObjectKey {
	m := w.manifests[name]
	return client.ObjectKey{Namespace: m.namespace, Name: m.name}
}

func (w *world) pods(ctx context.Context, name string) ([]corev1.Pod, error) {
	var list corev1.PodList
	m := w.manifests[name]
	err := w.List(ctx, &list, client.InNamespace(m.namespace), client.MatchingLabels(m.pod.Labels))
	return list.Items, err
}

func (w *world) testStranger(t *testing.T) {
	agent := w.manifests["node"].pod.Spec.DeepCopy()
	agent.ServiceAccountName = "default"
	err := w.Create(t.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: rbac.Namespace, Name: "agent"}, Spec: *agent}, client.DryRunAll)
	if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), `violates PodSecurity "restricted`) {
		t.Errorf("a Pod with privileges beside the controller: %v", err)
	}
}

func (w *world) testAccounts(t *testing.T) {
	for _, namespace := range []string{rbac.Namespace, rbac.NodeNamespace} {
		var accounts corev1.ServiceAccountList
		must(t, w.List(t.Context(), &accounts, client.InNamespace(namespace)))
		if !slices.ContainsFunc(accounts.Items, func(a corev1.ServiceAccount) bool { return strings.HasPrefix(a.Name, "virtloom-") }) {
			t.Errorf("namespace %s has no account", namespace)
		}
		for i := range accounts.Items {
			a := &accounts.Items[i]
			if strings.HasPrefix(a.Name, "virtloom-") && (a.AutomountServiceAccountToken == nil || *a.AutomountServiceAccountToken || len(a.Secrets) > 0) {
				t.Errorf("whatever runs as %s/%s gets its token", namespace, a.Name)
			}
		}
	}
}

// testBudget evicts replicas without letting any go.
func (w *world) testBudget(t *testing.T) {
	w.testPods(t)
	w.await(t, "the budget to know its Pods", func(ctx context.Context) error {
		var b policyv1.PodDisruptionBudget
		err := w.Get(ctx, w.key("controller"), &b)
		if err != nil || b.Status.DisruptionsAllowed != 1 || b.Status.CurrentHealthy != 2 {
			return fmt.Errorf("%+v %w", b.Status, err)
		}
		return nil
	})
	pods, err := w.pods(t.Context(), "controller")
	must(t, err)
	evict := func(p *corev1.Pod) error {
		return w.SubResource("eviction").Create(t.Context(), p, &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, Name: p.Name}})
	}
	// As before a drain. What takes the place of the first finds no node, else the second might go with right.
	for i := range pods {
		w.cordon(t, pods[i].Spec.NodeName, true)
		defer w.cordon(t, pods[i].Spec.NodeName, false)
	}
	must(t, evict(&pods[0]))
	if err := evict(&pods[1]); !apierrors.IsTooManyRequests(err) {
		t.Errorf("the second replica is evicted after the first: %v", err)
	}
}

func (w *world) cordon(t *testing.T, node string, on bool) {
	t.Helper()
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}}
	patch := fmt.Appendf(nil, `{"spec":{"unschedulable":%t}}`, on)
	must(t, w.Patch(context.WithoutCancel(t.Context()), n, client.RawPatch(types.MergePatchType, patch)))
}

// credentials are those that the kubelet would mount into a Pod: a token bound to it, which names its node.
func (w *world) credentials(t *testing.T, pod *corev1.Pod) string {
	t.Helper()
	answer, err := w.clientset.CoreV1().ServiceAccounts(pod.Namespace).CreateToken(t.Context(), pod.Spec.ServiceAccountName, &authenticationv1.TokenRequest{
		Spec: authenticationv1.TokenRequestSpec{BoundObjectRef: &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID}},
	}, metav1.CreateOptions{})
	must(t, err)
	admin := w.Config(rig.UserAdmin)
	c := clientcmdapi.NewConfig()
	c.Clusters["c"] = &clientcmdapi.Cluster{Server: admin.Host, CertificateAuthorityData: admin.CAData}
	c.AuthInfos["u"] = &clientcmdapi.AuthInfo{Token: answer.Status.Token}
	c.Contexts["c"] = &clientcmdapi.Context{Cluster: "c", AuthInfo: "u"}
	c.CurrentContext = "c"
	path := filepath.Join(t.TempDir(), "kubeconfig")
	must(t, clientcmd.WriteToFile(*c, path))
	return path
}

func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	must(t, err)
	defer l.Close()
	return l.Addr().String()
}

// daemon is one that runs as its Pod would.
type daemon struct {
	*rig.Program
	pod, health, metrics string
	// webhooks is where the API server may ask a controller.
	webhooks string
}

// run runs a daemon as its Pod would, but for where it listens and what changes say; later flags win.
func (w *world) run(t *testing.T, name string, pod *corev1.Pod, changes ...string) *daemon {
	t.Helper()
	health, metrics := freeAddress(t), freeAddress(t)
	args := slices.Clone(w.manifests[name].container().Args)
	for i, arg := range args {
		args[i] = strings.NewReplacer("$(NODE_NAME)", pod.Spec.NodeName, "$(POD_IP)", "127.0.0.1").Replace(arg)
	}
	address := ""
	if name == "controller" {
		address = freeAddress(t)
		args = append(args, "--webhook-address="+address)
	}
	args = append(args, "--kubeconfig="+w.credentials(t, pod), "--health-address="+health, "--metrics-address="+metrics)
	p, err := w.Run(pod.Name, exec.Command(w.binary, append(args, changes...)...))
	must(t, err)
	d := &daemon{Program: p, pod: pod.Name, health: "http://" + health, metrics: "https://" + metrics + "/metrics", webhooks: address}
	for _, probe := range []*corev1.Probe{w.manifests[name].container().LivenessProbe, w.manifests[name].container().ReadinessProbe} {
		w.await(t, name+" to answer "+probe.HTTPGet.Path, func(ctx context.Context) error {
			select {
			case <-p.Done():
				t.Fatal(p.Ended())
			default:
			}
			return (&question{url: d.health + probe.HTTPGet.Path}).want(ctx, http.StatusOK)
		})
	}
	return d
}
