// SPDX-License-Identifier: Apache-2.0

package pods_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	v1 "kubevirt.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/virtloom/virtloom/internal/realcluster"
	"github.com/virtloom/virtloom/internal/refcluster"
	"github.com/virtloom/virtloom/internal/rig"
)

// TestVMI_Steps logs how long each step of a start takes, from the audit log, what the kubelet reports, the launcher's log and the
// console, and how much memory a launcher takes beside QEMU: the tables in docs/performance.md. Only that all of it happens is asserted.
func TestVMI_Steps(t *testing.T) {
	reported := watchKubelet(t, cluster(t))
	s := boot(t, newGuest("steps"))
	first := s.con.Ticks()[0].At
	pods, err := s.pods(t.Context())
	must(t, err)
	pod := &pods[0]
	requests, err := s.c.Rig.Requests()
	must(t, err)
	steps := append(stepsOf(requests, s.vmi, pod.Name), step{"guest: first line of the console", first},
		step{"launcher: libvirt answers, the agent may ask", saidAt(t, s.c, pod, "Serving VMI")})
	for _, r := range []struct{ key, what string }{
		{string(corev1.PodReadyToStartContainers), "kubelet: volumes and the Pod's network"},
		{string(corev1.PodInitialized), "kubelet: init containers, one after the other"},
		{"Started spec.containers{compute}", "kubelet: container compute started"},
		{string(corev1.ContainersReady), "kubelet: all containers started and ready"},
	} {
		steps = append(steps, step{r.what, reported.at(t, pod.Name, r.key)})
	}
	began := steps[0].at
	slices.SortStableFunc(steps, func(a, b step) int { return a.at.Compare(b.at) })
	for _, st := range steps {
		if st.at.IsZero() {
			t.Errorf("%s: it is not known when", st.what)
		}
		t.Logf("%8.0f ms  %s", float64(st.at.Sub(began))/float64(time.Millisecond), st.what)
	}
	logImages(t, s.c, pod)
	t.Logf("memory of the launcher's programs but QEMU: %d KiB", launcherMemory(t, s.c, pod))
}

// step is something that happened, and when.
type step struct {
	what string
	at   time.Time
}

// reports are what a kubelet has reported about Pods, and when it was first seen: conditions that are true, and reasons of events.
type reports struct {
	mu   sync.Mutex
	seen map[string]time.Time
}

// watchKubelet begins to note what kubelets report about the Pods of the tenant.
func watchKubelet(t *testing.T, c *realcluster.Cluster) *reports {
	t.Helper()
	r := &reports{seen: map[string]time.Time{}}
	for _, list := range []client.ObjectList{&corev1.PodList{}, &corev1.EventList{}} {
		w, err := c.Client.Watch(t.Context(), list, client.InNamespace(namespace))
		must(t, err)
		go func() {
			for e := range w.ResultChan() {
				r.note(e.Object)
			}
		}()
	}
	return r
}

func (r *reports) note(o runtime.Object) {
	r.mu.Lock()
	defer r.mu.Unlock()
	first := func(pod, key string) {
		if r.seen[pod+" "+key].IsZero() {
			r.seen[pod+" "+key] = time.Now()
		}
	}
	switch o := o.(type) {
	case *corev1.Pod:
		for _, c := range o.Status.Conditions {
			if c.Status == corev1.ConditionTrue {
				first(o.Name, string(c.Type))
			}
		}
	case *corev1.Event:
		first(o.InvolvedObject.Name, o.Reason+" "+o.InvolvedObject.FieldPath)
	}
}

// at waits until the kubelet has reported something about the Pod, and returns when.
func (r *reports) at(t *testing.T, pod, key string) (at time.Time) {
	t.Helper()
	must(t, refcluster.Await(t.Context(), patience, "a report of "+key, func(context.Context) error {
		r.mu.Lock()
		defer r.mu.Unlock()
		if at = r.seen[pod+" "+key]; at.IsZero() {
			return errors.New("there is none")
		}
		return nil
	}))
	return at
}

// saidAt returns when the launcher of a Pod first logged a line with that text, by the container runtime's stamp.
func saidAt(t *testing.T, c *realcluster.Cluster, pod *corev1.Pod, text string) time.Time {
	t.Helper()
	log, err := c.Clientset.CoreV1().Pods(pod.Namespace).GetLogs(pod.Name, &corev1.PodLogOptions{Container: "compute", Timestamps: true}).DoRaw(t.Context())
	must(t, err)
	for line := range strings.Lines(string(log)) {
		if stamp, rest, _ := strings.Cut(line, " "); strings.Contains(rest, text) {
			at, err := time.Parse(time.RFC3339Nano, stamp)
			must(t, err)
			return at
		}
	}
	t.Fatalf("the launcher does not say %q:\n%s", text, log)
	return time.Time{}
}

// logImages logs how the images of a Pod came to its node.
func logImages(t *testing.T, c *realcluster.Cluster, pod *corev1.Pod) {
	t.Helper()
	events, err := c.Clientset.CoreV1().Events(pod.Namespace).List(t.Context(),
		metav1.ListOptions{FieldSelector: "reason=Pulled,involvedObject.name=" + pod.Name})
	must(t, err)
	for i := range events.Items {
		t.Logf("%s: %s", events.Items[i].InvolvedObject.FieldPath, events.Items[i].Message)
	}
}

// stepsOf returns the steps of a start that are in the audit log.
func stepsOf(requests []rig.Request, vmi *v1.VirtualMachineInstance, pod string) []step {
	steps := []step{
		{what: "API server: VMI created"}, {what: "controller: Pod created"}, {what: "scheduler: Pod bound"},
		{what: "controller: VMI handed to the node"}, {what: "agent, libvirt: VMI Running"},
	}
	note := func(i int, at time.Time) {
		if steps[i].at.IsZero() {
			steps[i].at = at
		}
	}
	for _, q := range requests {
		if !q.Accepted() || q.ObjectRef.Namespace != vmi.Namespace {
			continue
		}
		switch {
		case q.What() == "create virtualmachineinstances" && named(q, vmi.Name):
			note(0, q.Received)
		case q.What() == "create pods" && named(q, pod):
			note(1, q.Answered)
		case q.What() == "create pods/binding" && q.ObjectRef.Name == pod:
			note(2, q.Answered)
		case q.ObjectRef.Resource == "virtualmachineinstances" && q.ObjectRef.Name == vmi.Name && q.ResponseObject != nil:
			var o v1.VirtualMachineInstance
			if json.Unmarshal(q.ResponseObject, &o) != nil {
				continue
			}
			switch o.Status.Phase {
			case v1.Scheduled:
				note(3, q.Answered)
			case v1.Running:
				note(4, q.Answered)
			}
		}
	}
	return steps
}

// named reports whether a request is about the object of that name; that of a creation may be in its body alone.
func named(q rig.Request, name string) bool {
	if q.ObjectRef.Name == name {
		return true
	}
	for _, body := range []json.RawMessage{q.RequestObject, q.ResponseObject} {
		var o struct{ Metadata struct{ Name string } }
		if json.Unmarshal(body, &o) == nil && o.Metadata.Name == name {
			return true
		}
	}
	return false
}

// launcherMemory sums the memory of the processes in the compute container of a Pod, QEMU left out, in KiB: of a page that several
// processes of the machine share, each has its part (PSS).
func launcherMemory(t *testing.T, c *realcluster.Cluster, pod *corev1.Pod) int {
	t.Helper()
	processes, err := c.Processes(t.Context(), pod, "compute")
	must(t, err)
	total := 0
	for _, status := range processes {
		name, rss, kib := "", 0, 0
		for _, line := range strings.Split(status, "\n") {
			_, _ = fmt.Sscanf(line, "Name: %s", &name)
			_, _ = fmt.Sscanf(line, "VmRSS: %d kB", &rss)
			_, _ = fmt.Sscanf(line, "Pss: %d kB", &kib)
		}
		t.Logf("%8d KiB, resident %d KiB  %s", kib, rss, name)
		if !strings.HasPrefix(name, "qemu") {
			total += kib
		}
	}
	return total
}
