// SPDX-License-Identifier: Apache-2.0

package nodectrl_test

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	v1 "kubevirt.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/virtloom/virtloom/domain/nodectrl"
)

// TestHeartbeat_NodeUnfit: a node that lacks something takes no VMIs, says why, and takes them once it has it.
func TestHeartbeat_NodeUnfit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var lacks atomic.Bool
		lacks.Store(true)
		want := []nodectrl.Problem{{Code: "NoTun", What: "no tun", Remedy: "modprobe tun"}}
		recorder := events.NewFakeRecorder(10)
		h := start(t, func(h *nodectrl.Heartbeat) {
			h.Recorder = recorder
			h.Check = func(context.Context) []nodectrl.Problem {
				if lacks.Load() {
					return want
				}
				return nil
			}
		})
		look := func(schedulable string, want []nodectrl.Problem) {
			t.Helper()
			node := &corev1.Node{}
			must(t, h.c.Get(t.Context(), client.ObjectKey{Name: "node-a"}, node))
			got, err := nodectrl.ProblemsOf(node)
			must(t, err)
			if d := cmp.Diff(want, got); d != "" || node.Labels[v1.NodeSchedulable] != schedulable || node.Annotations["kept"] != "yes" {
				t.Errorf("schedulable %s, problems -want +got\n%s", node.Labels[v1.NodeSchedulable], d)
			}
		}
		look("false", want)
		h.pass(3 * time.Minute)
		look("false", want)
		lacks.Store(false)
		h.pass(2 * time.Second) // long before the next heartbeat
		look("true", nil)
		lacks.Store(true)
		h.pass(11 * time.Second) // long before the next heartbeat as well
		look("false", want)
		must(t, h.stop())
		for range 2 {
			if got := <-recorder.Events; !strings.Contains(got, "no tun (modprobe tun)") {
				t.Errorf("event %q", got)
			}
		}
		if len(recorder.Events) > 0 {
			t.Errorf("%d more events", len(recorder.Events))
		}
	})
}

func TestProblemsOf_InvalidAnnotation(t *testing.T) {
	for name, tt := range map[string]struct{ text, want string }{
		"no JSON": {"x", "invalid character"}, "huge": {"[" + strings.Repeat(" ", 1<<15) + "]", "bytes, more than"}, "no list": {`{"code":"x"}`, "cannot unmarshal"},
	} {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-a", Annotations: map[string]string{nodectrl.ProblemsAnnotation: tt.text}}}
		if got, err := nodectrl.ProblemsOf(node); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, %v", name, got, err)
		}
	}
	if got, err := nodectrl.ProblemsOf(&corev1.Node{}); err != nil || got != nil {
		t.Errorf("none: %v, %v", got, err)
	}
}
