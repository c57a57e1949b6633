// SPDX-License-Identifier: Apache-2.0

package vmictrl_test

import (
	"context"
	"flag"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	v1 "kubevirt.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/virtloom/virtloom/expectations/expectationsctrl"
	"github.com/virtloom/virtloom/internal/rig/rigtest"
	"github.com/virtloom/virtloom/vmi/vmictrl"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// row is a case of the list of differential tests (specs: VMI reconciliation 13); its name
// starts with the number. All writes of the controller from its start until it is idle are in
// testdata/writes, under the name of the row. Where they intentionally differ from KubeVirt
// the name contains the improvement.
type row struct {
	// scene is the state when the controller starts.
	scene scene
	// edit changes the controller.
	edit func(*vmictrl.Reconciler)
	// wrap stands between the controller and the API server.
	wrap func(w *world, g *v1.VirtualMachineInstance, next http.RoundTripper) http.RoundTripper
	// until is the awaited state; if nil, the row only waits until the controller is idle.
	until func(*v1.VirtualMachineInstance) bool
	// then are further steps, each with its writes.
	then []func(*world, *v1.VirtualMachineInstance)
}

// rowsOfSpec are all rows.
var rowsOfSpec = []map[string]row{startRows, storageRows, schedulingRows, runningRows, podRows, endRows}

// TestWritesOfSpec compares what the controller writes with the golden files.
func TestWritesOfSpec(t *testing.T) {
	c := newCluster(t)
	newCDI(c.world(t)).install()
	for _, rows := range rowsOfSpec {
		for name, r := range rows {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				r.run(c.world(t))
			})
		}
	}
}

func (r row) run(w *world) {
	g := r.scene.make(w)
	notes := &notes{}
	c := &watched{world: w, guest: g, notes: notes}
	w.start(setup{
		edit: func(made *vmictrl.Reconciler) {
			made.Recorder, made.Client, made.Clock = notes, &passes{made.Client, &c.seen}, c
			if r.edit != nil {
				r.edit(made)
			}
			c.controller = made
		},
		wrap: func(next http.RoundTripper) http.RoundTripper {
			if r.wrap != nil {
				next = r.wrap(w, g, next)
			}
			return notes.wrap(c.deletionsSeen(next))
		},
	})
	if r.until != nil {
		w.await(g, "what the row is about", func() bool { return r.until(g) })
	}
	c.rest()
	for _, then := range r.then {
		notes.add("--- then ---\n")
		c.later.Store(true)
		then(w, g)
		c.rest()
	}
	golden(w.t, c.text())
}

// golden compares the text with the file of the test.
func golden(t *testing.T, got string) {
	t.Helper()
	_, name, _ := strings.Cut(t.Name(), "/")
	name, _, _ = strings.Cut(name, "_(")
	file := filepath.Join("testdata", "writes", regexp.MustCompile(`[^A-Za-z0-9]+`).ReplaceAllString(name, "-")+".txt")
	if *update {
		if err := os.MkdirAll(filepath.Dir(file), 0o750); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(got), 0o600); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("what is written is not as in %s (-want +got; see -update):\n%s", file, diff)
	}
}

// passes is a client that records with which version of a VMI a pass begins.
type passes struct {
	client.Client
	seen *atomic.Uint64
}

func (p *passes) Get(ctx context.Context, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
	err := p.Client.Get(ctx, key, o, opts...)
	if _, guest := o.(*v1.VirtualMachineInstance); guest && key.Name == vmiName && err == nil {
		p.seen.Store(version(o))
	}
	return err
}

func version(o client.Object) uint64 {
	n, err := strconv.ParseUint(o.GetResourceVersion(), 10, 64)
	if err != nil {
		return 0
	}
	return n
}

// watched is an observed controller with one VMI.
type watched struct {
	*world
	guest      *v1.VirtualMachineInstance
	controller *vmictrl.Reconciler
	notes      *notes
	// seen is the version of the VMI that the last pass began with.
	seen  atomic.Uint64
	poke  int
	later atomic.Bool
}

// Now is the controller's clock. Further steps happen a minute later, as times are stored in
// seconds.
func (c *watched) Now() time.Time {
	if c.later.Load() {
		return time.Now().Add(time.Minute)
	}
	return time.Now()
}

// Since implements clock.PassiveClock.
func (c *watched) Since(t time.Time) time.Duration { return c.Now().Sub(t) }

// deletionsSeen holds the answer to the deletion of a Pod back until the cache of the controller shows the deletion: whether
// the next pass still sees the Pod must not depend on which of two watches is quicker.
func (c *watched) deletionsSeen(next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(req *http.Request) (*http.Response, error) {
		if req.Method != http.MethodDelete || !strings.Contains(req.URL.Path, "/pods/") {
			return next.RoundTrip(req)
		}
		key := client.ObjectKey{Namespace: c.ns, Name: filepath.Base(req.URL.Path)}
		cached := func() (*corev1.Pod, error) {
			pod := &corev1.Pod{}
			return pod, client.IgnoreNotFound(c.controller.Client.Get(req.Context(), key, pod))
		}
		before, err := cached()
		if err != nil {
			return nil, err
		}
		resp, err := next.RoundTrip(req)
		if err != nil || resp.StatusCode != http.StatusOK {
			return resp, err
		}
		return resp, rigtest.Poll(req.Context(), patience, func(context.Context) (bool, error) {
			now, err := cached()
			return now.UID != before.UID || now.DeletionTimestamp != nil, err
		})
	})
}

// rest returns when a pass on the current state had nothing to write.
func (c *watched) rest() {
	c.t.Helper()
	c.eventually(func() string {
		before := c.text()
		c.catchUp()
		// A pass reads the VMI twice, so it has ended when a third change is observed.
		for range 3 {
			if c.pass(); c.t.Failed() {
				return ""
			}
		}
		if after := c.text(); before != after {
			return "the controller writes: " + after
		}
		return ""
	})
}

// catchUp waits until the caches of the controller have observed all Pods and its writes.
func (c *watched) catchUp() {
	c.t.Helper()
	marker := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: c.ns, GenerateName: "marker-"},
		Spec: corev1.PodSpec{SchedulerName: noScheduler, Containers: []corev1.Container{{Name: "marker", Image: image}}}}
	c.createPod(marker)
	c.eventually(func() string {
		if err := c.controller.Client.Get(c.t.Context(), client.ObjectKeyFromObject(marker), &corev1.Pod{}); err != nil {
			return "the cache does not show a marker: " + err.Error()
		}
		v, err := c.controller.Gate.Check(c.t.Context(), expectationsctrl.OwnerOf(c.guest))
		if err != nil || len(v.Pending) > 0 {
			return "the caches do not show what the controller has written"
		}
		return ""
	})
}

// pass changes an unused annotation, and waits until a pass begins that observes it. A deleted
// VMI has no passes.
func (c *watched) pass() {
	c.t.Helper()
	c.poke++
	patch := []byte(`{"metadata":{"annotations":{"` + pokeAnnotation + `":"` + strconv.Itoa(c.poke) + `"}}}`)
	poked := &v1.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{Namespace: c.ns, Name: vmiName}}
	switch err := c.Patch(c.t.Context(), poked, client.RawPatch("application/merge-patch+json", patch)); {
	case apierrors.IsNotFound(err):
		return
	case err != nil:
		c.t.Error(err)
		return
	}
	c.eventually(func() string {
		if c.seen.Load() >= version(poked) || apierrors.IsNotFound(c.Get(c.t.Context(), client.ObjectKeyFromObject(poked), poked.DeepCopy())) {
			return ""
		}
		return "no pass sees the last change of the guest"
	})
}
