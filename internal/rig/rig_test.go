// SPDX-License-Identifier: Apache-2.0

package rig_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/virtloom/virtloom/internal/rig"
	"github.com/virtloom/virtloom/internal/rig/rigtest"
)

// patience bounds every wait of these tests; it is long because a busy machine is slow.
const patience = 2 * time.Minute

// interval is how often a condition is looked at.
const interval = 50 * time.Millisecond

// shared starts one rig with two nodes for the subtests.
func shared(t *testing.T) (*rig.Rig, kubernetes.Interface) {
	t.Helper()
	started := time.Now()
	r := rigtest.Start(t, rig.Options{SimulatedNodes: 2})
	t.Logf("rig with two nodes started in %v", time.Since(started).Round(time.Millisecond))
	return r, client(t, r, "tester")
}

func client(t *testing.T, r *rig.Rig, user string) kubernetes.Interface {
	t.Helper()
	c, err := kubernetes.NewForConfig(r.Config(user))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// TestRig runs everything that needs no rig of its own on one.
func TestRig(t *testing.T) {
	r, c := shared(t)
	t.Run("serves every definition", func(t *testing.T) { servesDefinitions(t, r) })
	t.Run("separates status where KubeVirt does", func(t *testing.T) { separatesStatus(t, r) })
	t.Run("runs a scheduled pod", func(t *testing.T) { runsScheduledPod(t, c) })
	t.Run("makes Ready follow readiness gates", func(t *testing.T) { readyFollowsGates(t, c) })
	t.Run("keeps a deleted pod for its grace period", func(t *testing.T) { deletedPodStays(t, c) })
	t.Run("ends a deleted pod early on a shorter grace period", func(t *testing.T) { shorterGrace(t, c) })
	t.Run("completes the pod of a job", func(t *testing.T) { completesJobPod(t, c) })
	t.Run("replaces a deleted pod of the same name", func(t *testing.T) { replacesPod(t, c) })
	t.Run("attributes requests in the audit log", func(t *testing.T) { attributesRequests(t, r) })
	t.Run("writes kubeconfig files", func(t *testing.T) { kubeconfigWorks(t, r) })
	t.Run("offers what a guest requires", func(t *testing.T) { offersDevices(t, c) })
}

func runsScheduledPod(t *testing.T, c kubernetes.Interface) {
	pod := newPod("plain")
	pod.Spec.InitContainers = []corev1.Container{{Name: "prepare", Image: "example.test/init:1"}}
	create(t, c, pod)
	got := waitPod(t, c, pod.Name, "phase Running", func(p *corev1.Pod) bool { return p.Status.Phase == corev1.PodRunning })
	if got.Spec.NodeName == "" || got.Status.PodIP == "" || got.Status.HostIP != "127.0.0.1" {
		t.Errorf("node %q, pod IP %q, host IP %q: want all of them, host 127.0.0.1", got.Spec.NodeName, got.Status.PodIP, got.Status.HostIP)
	}
	if s := condition(got, corev1.PodReady); s != corev1.ConditionTrue {
		t.Errorf("Ready is %q, want True", s)
	}
	statuses := append(got.Status.InitContainerStatuses, got.Status.ContainerStatuses...)
	if len(statuses) != 2 {
		t.Fatalf("%d container statuses, want 2", len(statuses))
	}
	for _, s := range statuses {
		if !strings.Contains(s.ImageID, "@sha256:") {
			t.Errorf("container %s: imageID %q has no digest", s.Name, s.ImageID)
		}
	}
}

func readyFollowsGates(t *testing.T, c kubernetes.Interface) {
	const gate = "kubevirt.io/virtual-machine-unpaused"
	pod := newPod("gated")
	pod.Spec.ReadinessGates = []corev1.PodReadinessGate{{ConditionType: gate}}
	create(t, c, pod)
	got := waitPod(t, c, pod.Name, "phase Running", func(p *corev1.Pod) bool { return p.Status.Phase == corev1.PodRunning })
	if s := condition(got, corev1.PodReady); s != corev1.ConditionFalse {
		t.Errorf("Ready is %q while the gate was never opened, want False", s)
	}
	if s := condition(got, gate); s != "" {
		t.Errorf("the gate was set to %q by the kubelet", s)
	}
	for _, want := range []corev1.ConditionStatus{corev1.ConditionTrue, corev1.ConditionFalse, corev1.ConditionTrue} {
		setCondition(t, c, pod.Name, gate, want)
		got = waitPod(t, c, pod.Name, "Ready "+string(want), func(p *corev1.Pod) bool { return condition(p, corev1.PodReady) == want })
		if s := condition(got, gate); s != want {
			t.Errorf("the gate became %q, want it left at %q", s, want)
		}
	}
}

func deletedPodStays(t *testing.T, c kubernetes.Interface) {
	const grace = 4
	pod := running(t, c, "graceful")
	remove(t, c, pod.Name, grace)
	got, err := c.CoreV1().Pods(pod.Namespace).Get(t.Context(), pod.Name, metav1.GetOptions{})
	if err != nil || got.DeletionTimestamp == nil || got.Status.Phase != corev1.PodRunning {
		t.Fatalf("pod right after its deletion: %v, %v", got, err)
	}
	waitGone(t, c, pod.Name)
	// The timestamp has whole seconds, so it may lie up to one second before the end.
	if now := time.Now(); now.Before(got.DeletionTimestamp.Time) {
		t.Errorf("gone %v before its deletion timestamp", got.DeletionTimestamp.Sub(now))
	}
}

func shorterGrace(t *testing.T, c kubernetes.Interface) {
	const longer = 10 * 60
	pod := running(t, c, "impatient")
	remove(t, c, pod.Name, longer)
	remove(t, c, pod.Name, 1)
	waitGone(t, c, pod.Name) // well before longer, as patience is shorter
}

func completesJobPod(t *testing.T, c kubernetes.Interface) {
	pod := newPod("job")
	// Without a UID that exists the garbage collector would take the Pod away.
	ns, err := c.CoreV1().Namespaces().Get(t.Context(), metav1.NamespaceDefault, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	job := createJob(t, c, ns.Name)
	pod.OwnerReferences = []metav1.OwnerReference{{APIVersion: "batch/v1", Kind: "Job", Name: job.Name, UID: job.UID}}
	create(t, c, pod)
	waitPod(t, c, pod.Name, "phase Succeeded", func(p *corev1.Pod) bool { return p.Status.Phase == corev1.PodSucceeded })
}

func replacesPod(t *testing.T, c kubernetes.Interface) {
	first := running(t, c, "again")
	remove(t, c, first.Name, 2)
	waitGone(t, c, first.Name)
	second := running(t, c, "again")
	if first.UID == second.UID {
		t.Fatal("still the first pod")
	}
	// What was to be done to the first Pod must not be done to the second: give it the time of a
	// heartbeat of something that surely comes after, the start of one more Pod.
	running(t, c, "after")
	got, err := c.CoreV1().Pods(second.Namespace).Get(t.Context(), second.Name, metav1.GetOptions{})
	if err != nil || got.UID != second.UID || got.DeletionTimestamp != nil {
		t.Errorf("second pod of the name: %v, %v", got, err)
	}
}

func attributesRequests(t *testing.T, r *rig.Rig) {
	const user = "virtloom-example"
	_, err := client(t, r, user).CoreV1().ConfigMaps(metav1.NamespaceDefault).Create(t.Context(),
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "audited"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if n := countWrites(t, r, user, "create", "configmaps"); n != 1 {
		t.Errorf("audit log has %d creations of config maps by %s, want 1", n, user)
	}
	if n := countWrites(t, r, "system:kube-scheduler", "create", "pods"); n == 0 {
		t.Error("audit log has no binding by the scheduler")
	}
}

func kubeconfigWorks(t *testing.T, r *rig.Rig) {
	config, err := clientcmd.BuildConfigFromFlags("", r.Kubeconfig("some/body"))
	if err != nil {
		t.Fatal(err)
	}
	c, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{}); err != nil {
		t.Error(err)
	}
}

func offersDevices(t *testing.T, c kubernetes.Interface) {
	pod := newPod("devices")
	one := corev1.ResourceList{
		"devices.kubevirt.io/kvm": quantity("1"), "devices.kubevirt.io/tun": quantity("1"), "devices.kubevirt.io/vhost-net": quantity("1"),
		corev1.ResourceCPU: quantity("100m"), corev1.ResourceMemory: quantity("256Mi"), corev1.ResourceEphemeralStorage: quantity("50M"),
	}
	pod.Spec.Containers[0].Resources = corev1.ResourceRequirements{Requests: one, Limits: one}
	pod.Spec.NodeSelector = map[string]string{
		"kubevirt.io/schedulable":            "true",
		"machine-type.node.kubevirt.io/q35":  "true",
		"cpu-model.node.kubevirt.io/Nehalem": "true",
		"kubernetes.io/arch":                 "amd64",
		"kubernetes.io/hostname":             "sim-1",
	}
	create(t, c, pod)
	waitPod(t, c, pod.Name, "phase Running", func(p *corev1.Pod) bool { return p.Status.Phase == corev1.PodRunning })
}

func TestStop_RemovesFiles(t *testing.T) {
	rigtest.Need(t)
	parent := t.TempDir()
	r, err := rig.Start(t.Context(), rig.Options{Dir: parent})
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	if left := processesOf(t, r.Dir()); len(left) > 0 {
		t.Errorf("processes left: %v", left)
	}
	if left := foldersOf(t, parent, r.Dir()); len(left) > 0 {
		t.Errorf("folders left: %v", left)
	}
}

func TestStart_WithoutPrograms(t *testing.T) {
	t.Setenv("VIRTLOOM_BIN", t.TempDir())
	_, err := rig.Start(t.Context(), rig.Options{})
	if !errors.Is(err, rig.ErrNoPrograms) || !strings.Contains(err.Error(), "make setup") || !strings.Contains(err.Error(), "etcd") {
		t.Errorf("error %v: want ErrNoPrograms, the remedy, and what is missing", err)
	}
}

// fakePrograms makes the rig start the given script as each of its programs.
func fakePrograms(t *testing.T, script string) (bin string) {
	t.Helper()
	bin = t.TempDir()
	for _, name := range rigPrograms {
		if err := os.WriteFile(filepath.Join(bin, name), []byte("#!/bin/sh\n"+script), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("VIRTLOOM_BIN", bin)
	return bin
}

func TestStart_ProgramExits(t *testing.T) {
	fakePrograms(t, "echo no such luck today\nexit 3\n")
	parent := t.TempDir()
	_, err := rig.Start(t.Context(), rig.Options{Dir: parent})
	if err == nil || !strings.Contains(err.Error(), "no such luck today") || !strings.Contains(err.Error(), "exit status 3") {
		t.Fatalf("error %v: want what the program said and how it ended", err)
	}
	logs, _ := filepath.Glob(filepath.Join(parent, "*", "log", "etcd.log"))
	if len(logs) != 1 || !strings.Contains(err.Error(), filepath.Dir(logs[0])) {
		t.Errorf("logs %v: want them kept and named by the error %v", logs, err)
	}
}

func TestStart_PortTaken(t *testing.T) {
	bin := fakePrograms(t, "echo $* >>$0.calls\necho listen tcp: bind: address already in use\nexit 1\n")
	parent := t.TempDir()
	_, err := rig.Start(t.Context(), rig.Options{Dir: parent})
	if err == nil {
		t.Fatal("started on programs that do not")
	}
	calls, err := os.ReadFile(filepath.Join(bin, "etcd.calls"))
	if err != nil {
		t.Fatal(err)
	}
	different := map[string]bool{}
	for line := range strings.Lines(string(calls)) {
		different[line] = true
	}
	if len(different) != 3 {
		t.Errorf("%d different attempts, want 3:\n%s", len(different), calls)
	}
	if left, _ := filepath.Glob(filepath.Join(parent, "*")); len(left) != 1 {
		t.Errorf("folders left: %v, want that of the last attempt", left)
	}
}

func TestStart_Interrupted(t *testing.T) {
	rigtest.Need(t)
	parent := t.TempDir()
	ctx, cancel := context.WithCancel(t.Context())
	_, err := rig.Start(ctx, rig.Options{Dir: parent, Log: func(string, ...any) { cancel() }})
	if !errors.Is(err, context.Canceled) {
		t.Fatalf("error %v, want context.Canceled", err)
	}
	if left, _ := filepath.Glob(filepath.Join(parent, "*")); len(left) > 0 {
		t.Errorf("files left: %v", left)
	}
}

// countWrites looks for answered requests in an audit log.
func countWrites(t *testing.T, r *rig.Rig, user, verb, resource string) int {
	t.Helper()
	requests, err := r.Requests()
	if err != nil {
		t.Fatal(err)
	}
	count := 0
	for _, q := range requests {
		if q.User.Username == user && q.Verb == verb && q.ObjectRef.Resource == resource {
			count++
		}
	}
	return count
}

// waitGone waits until the Pod does not exist.
func waitGone(t *testing.T, c kubernetes.Interface, name string) {
	t.Helper()
	err := wait.PollUntilContextTimeout(t.Context(), interval, patience, true, func(ctx context.Context) (bool, error) {
		_, err := c.CoreV1().Pods(metav1.NamespaceDefault).Get(ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return true, nil
		}
		return false, err
	})
	if err != nil {
		t.Fatalf("pod %s is not gone: %v", name, err)
	}
}
