// SPDX-License-Identifier: Apache-2.0

package pods_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"github.com/virtloom/virtloom/internal/refcluster"
	"github.com/virtloom/virtloom/internal/rig/rigtest"
)

// TestVMI_Reachable: Pods on both nodes, and the API server's proxy, reach a port of the guest at the address of its Pod and of a Service,
// before and after a migration, and it is the same guest, by the name that cloud-init has given it.
func TestVMI_Reachable(t *testing.T) {
	askers := newAskers(t)
	s := boot(t, newGuest("reachable"))
	service := s.service()
	s.answers("before the migration")
	s.answersPods("before the migration", service, askers)
	s.migrate()
	s.answers("after the migration")
	s.answersPods("after the migration", service, askers)
	s.unbroken()
}

// service makes a Service of a guest and returns its address.
func (s *scene) service() (clusterIP string) {
	s.Helper()
	service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: s.key.Name, Namespace: namespace}, Spec: corev1.ServiceSpec{
		Selector: map[string]string{"guest": s.key.Name}, Ports: []corev1.ServicePort{{Port: 80, TargetPort: intstr.FromInt32(port)}},
	}}
	must(s.T, s.c.Client.Create(s.Context(), service))
	s.Cleanup(func() { must(s.T, s.c.Client.Delete(context.Background(), service)) })
	return service.Spec.ClusterIP
}

// answers checks that the guest answers the API server at its Pod and at its Service.
func (s *scene) answers(when string) {
	s.Helper()
	must(s.T, refcluster.Await(s.Context(), patience, "the guest to answer "+when, func(ctx context.Context) error {
		pod, err := s.pod(ctx)
		if err != nil {
			return err
		}
		for _, path := range []string{fmt.Sprintf("pods/%s:%d", pod.Name, port), "services/" + s.key.Name + ":80"} {
			said, err := s.get(ctx, path)
			if err == nil {
				err = s.isHere(said)
			}
			if err != nil {
				return fmt.Errorf("%s: %w", path, err)
			}
		}
		return nil
	}))
}

// get asks a Pod or a Service by the API server's proxy.
func (s *scene) get(ctx context.Context, path string) (string, error) {
	raw, err := s.c.Clientset.CoreV1().RESTClient().Verb(http.MethodGet).
		AbsPath("/api/v1/namespaces/" + s.key.Namespace + "/" + path + "/proxy/").DoRaw(ctx)
	return string(raw), err
}

// isHere returns an error unless this guest of newGuest has given the answer.
func (s *scene) isHere(answer string) error {
	if !strings.Contains(answer, "host="+hostName(s.key.Name)+" uptime=") {
		return fmt.Errorf("the answer is %q", answer)
	}
	return nil
}

// newAskers creates a tenant's Pod on each node, of Pod Security level restricted, in which kubectl can ask others.
func newAskers(t *testing.T) []*corev1.Pod {
	t.Helper()
	c := cluster(t)
	rigtest.LoadBusybox(t, c.Nodes...)
	var pods []*corev1.Pod
	for _, n := range c.Nodes {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "asker-" + n.Name(), Namespace: namespace}, Spec: corev1.PodSpec{
			NodeName: n.Name(), TerminationGracePeriodSeconds: new(int64), AutomountServiceAccountToken: ptr.To(false),
			SecurityContext: &corev1.PodSecurityContext{
				RunAsNonRoot: ptr.To(true), RunAsUser: ptr.To(int64(65534)),
				SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
			},
			Containers: []corev1.Container{{
				Name: "asker", Image: rigtest.Busybox, ImagePullPolicy: corev1.PullNever, Command: []string{"/bin/sleep", "1000000"},
				SecurityContext: &corev1.SecurityContext{AllowPrivilegeEscalation: ptr.To(false), Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}}},
			}},
		}}
		must(t, c.Client.Create(t.Context(), pod))
		t.Cleanup(func() { must(t, c.Client.Delete(context.Background(), pod)) })
		pods = append(pods, pod)
	}
	return pods
}

// answersPods checks that the guest answers each of the Pods, at the address of its own Pod and, through kube-proxy, at that of its
// Service.
func (s *scene) answersPods(when, clusterIP string, askers []*corev1.Pod) {
	s.Helper()
	target, err := s.pod(s.Context())
	must(s.T, err)
	for _, from := range askers {
		for _, to := range []string{fmt.Sprintf("%s:%d", target.Status.PodIP, port), clusterIP + ":80"} {
			what := fmt.Sprintf("the guest to answer %s at %s %s", from.Name, to, when)
			must(s.T, refcluster.Await(s.Context(), patience, what, func(context.Context) error {
				said, err := kubectl("-n", from.Namespace, "exec", from.Name, "--", "/bin/timeout", "5", "/bin/wget", "-q", "-O", "-", "http://"+to+"/")
				if err != nil {
					return fmt.Errorf("%w: %s", err, said)
				}
				return s.isHere(said)
			}))
		}
	}
}
