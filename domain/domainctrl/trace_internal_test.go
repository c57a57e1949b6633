// SPDX-License-Identifier: Apache-2.0

package domainctrl

import (
	"context"
	"errors"
	"testing"

	"go.opentelemetry.io/otel/trace"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/internal/tracecontext"
)

func TestTrace_PassJoinsOperation(t *testing.T) {
	const text = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	move := v1.VirtualMachineInstanceMigrationState{MigrationUID: "1"}
	done, failed := move, move
	done.Completed, failed.Failed = true, true
	for name, tc := range map[string]struct {
		phase v1.VirtualMachineInstancePhase
		move  *v1.VirtualMachineInstanceMigrationState
		note  string
		want  bool
	}{
		"a start":                            {v1.Scheduled, nil, text, true},
		"a migration":                        {v1.Running, &move, text, true},
		"nothing, of a guest at rest":        {v1.Running, nil, text, false},
		"nothing, after a migration":         {v1.Running, &done, text, false},
		"nothing, after one that failed":     {v1.Running, &failed, text, false},
		"nothing, of a guest that has ended": {v1.Succeeded, &move, text, false},
		"nothing that can be understood":     {v1.Scheduled, nil, "00-nonsense", false},
		"nothing that is noted":              {v1.Scheduled, nil, "", false},
	} {
		t.Run(name, func(t *testing.T) {
			g := &v1.VirtualMachineInstance{}
			g.Status.Phase, g.Status.MigrationState = tc.phase, tc.move
			g.Annotations = map[string]string{tracecontext.Annotation: tc.note}
			got := trace.SpanContextFromContext(joinDomainTrace(t.Context(), g))
			if got.IsValid() != tc.want || tc.want && tracecontext.Format(got) != text {
				t.Errorf("the pass is part of %q, want that: %v", tracecontext.Format(got), tc.want)
			}
		})
	}
	if trace.SpanContextFromContext(joinDomainTrace(t.Context(), nil)).IsValid() {
		t.Error("a pass over no guest is part of something")
	}
}

func TestTrace_CallRecordsError(t *testing.T) {
	want := errors.New("no such domain")
	if got := calling(t.Context(), "hypervisor.Start", func(context.Context) error { return want }); !errors.Is(got, want) {
		t.Errorf("error is %v, want %v", got, want)
	}
	if err := calling(t.Context(), "hypervisor.Start", func(context.Context) error { return nil }); err != nil {
		t.Error(err)
	}
}
