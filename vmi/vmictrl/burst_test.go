// SPDX-License-Identifier: Apache-2.0

package vmictrl_test

import (
	"flag"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	v1 "kubevirt.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/virtloom/virtloom/internal/rig"
	"github.com/virtloom/virtloom/internal/rig/rigtest"
	"github.com/virtloom/virtloom/vmi"
	"github.com/virtloom/virtloom/vmi/vmictrl"
)

// "make nightly ONLY=burst" creates 200 VMIs and watches ten minutes of idleness.
var (
	burstSize = flag.Int("burst", 40, "how many guests are created at once")
	burstIdle = flag.Duration("idle", 20*time.Second, "for how long nobody may write when all guests have their nodes")
)

const (
	// mostStartWrites bounds the writes of a controller per start, without events.
	mostStartWrites = 4
	// leastPerConflict is the minimum number of writes per conflict: 0.1 %.
	leastPerConflict = 1000
	// creators is the number of clients that create VMIs concurrently.
	creators = 16
	// burstPatience bounds each stage of the burst.
	burstPatience = 10 * time.Minute
)

// TestBurst creates many VMIs at once, leaves them idle, and deletes them. The assertions are
// on the API server's audit log.
func TestBurst(t *testing.T) {
	w := newCluster(t).world(t)
	w.start(setup{edit: func(r *vmictrl.Reconciler) {
		// No node agent answers, and the offer must not expire.
		r.Config = vmi.Config{AcceptWithin: *burstIdle + time.Hour}
	}})
	begun := time.Now()
	w.createAtOnce(*burstSize)
	created := time.Since(begun)
	w.awaitBurst("guests on their nodes", w.unplaced)
	placed := time.Since(begun)
	w.awaitBurst("open gates and emitted events", w.unsettled)
	started := w.audit()
	done := written(started, rig.Request.Accepted)
	t.Logf("%d guests were created in %s and on their nodes after %s; the controller wrote %v", *burstSize,
		created.Round(time.Millisecond), placed.Round(time.Millisecond), done)
	onePodEach(t, started, *burstSize)
	w.fewWrites(done)

	time.Sleep(*burstIdle) // the test measures idleness
	idle := w.audit()
	if n := written(idle[len(started):], func(rig.Request) bool { return true }); len(n) > 0 {
		t.Errorf("in %s of idleness the controller wrote %v", *burstIdle, n)
	}

	begun = time.Now()
	if err := w.DeleteAllOf(t.Context(), &v1.VirtualMachineInstance{}, client.InNamespace(w.ns)); err != nil {
		t.Fatal(err)
	}
	w.awaitBurst("the end of guests and Pods", w.left)
	t.Logf("they were gone %s after they were deleted", time.Since(begun).Round(time.Millisecond))
	all := w.audit()
	onePodEach(t, all, *burstSize)
	fewConflicts(t, all)
}

// createAtOnce creates the VMIs as fast as the API server accepts them.
func (w *world) createAtOnce(n int) {
	w.t.Helper()
	var group errgroup.Group
	group.SetLimit(creators)
	for i := range n {
		group.Go(func() error {
			g := newGuest(w.ns, fmt.Sprintf("guest-%d", i))
			return w.Create(w.t.Context(), g)
		})
	}
	if err := group.Wait(); err != nil {
		w.t.Fatal(err)
	}
}

// awaitBurst waits until look returns "".
func (w *world) awaitBurst(what string, look func() string) {
	w.t.Helper()
	var last string
	err := rigtest.Poll(w.t.Context(), burstPatience, wait.ConditionFunc(func() (bool, error) {
		last = look()
		return last == "", nil
	}).WithContext())
	if err != nil {
		w.t.Fatalf("waiting for %s: %v: %s", what, err, last)
	}
}

func (w *world) guests() []v1.VirtualMachineInstance {
	w.t.Helper()
	var list v1.VirtualMachineInstanceList
	if err := w.List(w.t.Context(), &list, client.InNamespace(w.ns)); err != nil {
		w.t.Fatal(err)
	}
	return list.Items
}

// unplaced reports how many VMIs are not on a node yet.
func (w *world) unplaced() string {
	phases := map[v1.VirtualMachineInstancePhase]int{}
	for _, g := range w.guests() {
		phases[g.Status.Phase]++
	}
	if phases[v1.Scheduled] == *burstSize {
		return ""
	}
	return fmt.Sprint(phases)
}

// unsettled reports pending gates and events.
func (w *world) unsettled() string {
	open := 0
	for _, p := range w.pods() {
		if slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
			return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
		}) {
			open++
		}
	}
	var emitted corev1.EventList
	if err := w.List(w.t.Context(), &emitted, client.InNamespace(w.ns)); err != nil {
		return err.Error()
	}
	created := 0
	for _, e := range emitted.Items {
		if e.ReportingController == "virtualmachine-controller" {
			created++
		}
	}
	if open == *burstSize && created >= *burstSize {
		return ""
	}
	return fmt.Sprintf("%d Pods are ready, %d events were emitted", open, created)
}

// left reports the remaining objects.
func (w *world) left() string {
	if guests, pods := len(w.guests()), len(w.pods()); guests+pods > 0 {
		return fmt.Sprintf("%d guests, %d Pods", guests, pods)
	}
	return ""
}

// fewWrites fails if a start took too many writes.
func (w *world) fewWrites(done map[string]int) {
	w.t.Helper()
	sum := 0
	for what, n := range done {
		if !strings.HasSuffix(what, " events") {
			sum += n
		}
	}
	w.t.Logf("%.3f writes for a start", float64(sum)/float64(*burstSize))
	if sum > mostStartWrites**burstSize {
		w.t.Errorf("%d starts cost %d writes, want %d each at most", *burstSize, sum, mostStartWrites)
	}
}

// fewConflicts fails if writes of any client were rejected because of a concurrent write: as
// conflicts, or, for JSON Patches, as failed tests.
func fewConflicts(t *testing.T, requests []rig.Request) {
	t.Helper()
	writes := 0
	conflicts := map[string]int{}
	for _, q := range requests {
		if q.ReadOnly() {
			continue
		}
		writes++
		if code := q.ResponseStatus.Code; code == http.StatusConflict || code == http.StatusUnprocessableEntity {
			conflicts[fmt.Sprintf("%s %s: %d", q.User.Username, q.What(), code)]++
		}
	}
	sum := 0
	for _, n := range conflicts {
		sum += n
	}
	t.Logf("of %d writes of all components %d were refused as conflicts: %v", writes, sum, conflicts)
	if sum*leastPerConflict > writes {
		t.Errorf("%d conflicts among %d writes, want 0.1 %% at most", sum, writes)
	}
}
