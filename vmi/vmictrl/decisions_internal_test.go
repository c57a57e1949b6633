// SPDX-License-Identifier: Apache-2.0

package vmictrl

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/utils/clock"
	v1 "kubevirt.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// decisions is a clock that counts the decisions: each reads the time in its own line.
type decisions struct {
	clock.PassiveClock
	n int
}

func (c *decisions) Now() time.Time {
	_, file, line, _ := runtime.Caller(1)
	text, err := os.ReadFile(filepath.Base(file))
	if lines := strings.Split(string(text), "\n"); err == nil && line <= len(lines) && strings.Contains(lines[line-1], "vmi.Decide(") {
		c.n++
	}
	return c.PassiveClock.Now()
}

// A pass decides before it acts, and again if there are results, whether it defers writes or not.
func TestPass_DecidesTwiceAtMost(t *testing.T) {
	with := func(g *v1.VirtualMachineInstance, edit func(*corev1.Pod), more ...client.Object) []client.Object {
		pod := scenePod(g)
		edit(pod)
		return append(more, g, pod)
	}
	isReady := func(*corev1.Pod) {}
	for name, test := range map[string]struct {
		objects   []client.Object
		saturated bool
		decisions int
		phase     v1.VirtualMachineInstancePhase
	}{
		"new":                                      {[]client.Object{sceneVMI(v1.VmPhaseUnset)}, false, 2, v1.Scheduling},
		"new, saturated":                           {[]client.Object{sceneVMI(v1.VmPhaseUnset)}, true, 2, v1.VmPhaseUnset},
		"the Pod starts":                           {with(sceneVMI(v1.Pending), notReady), false, 1, v1.Scheduling},
		"the Pod starts, saturated":                {with(sceneVMI(v1.Pending), notReady), true, 1, v1.Pending},
		"the Pod is ready":                         {with(sceneVMI(v1.Pending), isReady), false, 1, v1.Scheduling},
		"the Pod is ready, saturated":              {with(sceneVMI(v1.Pending), isReady), true, 1, v1.Scheduled},
		"the Pod is ready, Scheduling":             {with(sceneVMI(v1.Scheduling), isReady), false, 2, v1.Scheduled},
		"the Pod is ready, Scheduling, saturated":  {with(sceneVMI(v1.Scheduling), isReady), true, 1, v1.Scheduled},
		"a volume is to be hotplugged, saturated":  {with(sceneVMI(v1.Pending, diskOf("data", true), reported), isReady, claimOf("data", bound), classOf(storagev1.VolumeBindingImmediate)), true, 2, v1.Scheduled},
		"a volume is to be hotplugged, Scheduling": {with(sceneVMI(v1.Scheduling, diskOf("data", true), reported), isReady, claimOf("data", bound), classOf(storagev1.VolumeBindingImmediate)), false, 2, v1.Scheduled},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScene(t, (&failing{}).faults(), test.objects...)
			c := countDecisions(s, test.saturated)
			s.run(t, time.Millisecond, 1)
			if got := s.guest(t).Status.Phase; s.err != nil || c.n != test.decisions || got != test.phase {
				t.Errorf("%d decisions, phase %q, %v; want %d, %q", c.n, got, s.err, test.decisions, test.phase)
			}
		})
	}
	for verb := range fails {
		for _, saturated := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s fails, saturated %v", verb, saturated), func(t *testing.T) {
				f := &failing{}
				s := failingAt(t, verb, f)
				c := countDecisions(s, saturated)
				for range 20 {
					c.n = 0
					if s.run(t, time.Second, 1); c.n < 1 || c.n > 2 {
						t.Fatalf("%d decisions in a pass", c.n)
					}
				}
				if f.tries == 0 {
					t.Error("the action was not tried")
				}
			})
		}
	}
}

func notReady(p *corev1.Pod) { p.Status = corev1.PodStatus{} }

// countDecisions counts the decisions in a scene, in which other VMIs wait if it is saturated.
func countDecisions(s *scene, saturated bool) *decisions {
	c := &decisions{PassiveClock: s.clock}
	s.r.Clock, s.r.Renderer = c, plain{}
	if saturated {
		s.r.backlog.Use(&long{waiting: s.r.Workers + 1})
	}
	return c
}
