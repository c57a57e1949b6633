// SPDX-License-Identifier: Apache-2.0

package domainctrl_test

import (
	"bytes"
	"context"
	"slices"
	"testing"

	v1 "kubevirt.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/virtloom/virtloom/domain/domainctrl"
	"github.com/virtloom/virtloom/handoff"
	"github.com/virtloom/virtloom/internal/vmipatch"
)

// crossed calls a hook right before the first report of an agent arrives, and records all answers.
type crossed struct {
	client.Client
	do      func()
	answers []error
}

func (c *crossed) Patch(ctx context.Context, o client.Object, p client.Patch, opts ...client.PatchOption) error {
	data, err := p.Data(o)
	if err != nil || bytes.Contains(data, []byte("resourceVersion")) {
		return c.Client.Patch(ctx, o, p, opts...)
	}
	if len(c.answers) == 0 {
		c.do()
	}
	err = c.Client.Patch(ctx, o, p, opts...)
	c.answers = append(c.answers, err)
	return err
}

// reports makes the agent restore the lost LiveMigratable condition, while another client writes the
// object.
func (p *pair) reports(t *testing.T, other func(vmi *v1.VirtualMachineInstance)) (*v1.VirtualMachineInstance, []error) {
	t.Helper()
	stop := p.a.start(t)
	vmi := p.create(t, "guest")
	p.offer(t, vmi, p.a)
	p.runsOn(t, vmi, p.a)
	stop()
	p.change(t, vmi, func(vmi *v1.VirtualMachineInstance, _ handoff.Lease) error {
		vmi.Status.Conditions = slices.DeleteFunc(vmi.Status.Conditions, func(c v1.VirtualMachineInstanceCondition) bool {
			return c.Type == v1.VirtualMachineInstanceIsMigratable
		})
		return nil
	})
	var c *crossed
	r := p.a.slow(t, func(r *domainctrl.Reconciler, _ func()) {
		c = &crossed{Client: r.Client, do: func() { other(vmi) }}
		r.Client = c
	})
	pass(t, r, vmi)
	p.get(t, vmi)
	return vmi, c.answers
}

// hasCondition reports whether the object has a condition.
func hasCondition(vmi *v1.VirtualMachineInstance, t v1.VirtualMachineInstanceConditionType) bool {
	return slices.ContainsFunc(vmi.Status.Conditions, func(c v1.VirtualMachineInstanceCondition) bool { return c.Type == t })
}

func reportsBeside(t *testing.T, p *pair) {
	vmi, answers := p.reports(t, func(vmi *v1.VirtualMachineInstance) {
		p.change(t, vmi, func(vmi *v1.VirtualMachineInstance, _ handoff.Lease) error {
			vmi.Annotations["example.test/touched"] = "yes"
			vmi.Status.LauncherContainerImageVersion, vmi.Status.Conditions[0].Message = "other", "other"
			return nil
		})
	})
	if len(answers) != 1 || answers[0] != nil {
		t.Errorf("the report is answered by %v", answers)
	}
	kept := vmi.Annotations["example.test/touched"] == "yes" && vmi.Status.LauncherContainerImageVersion == "other" && vmi.Status.Conditions[0].Message == "other"
	if !kept || !hasCondition(vmi, v1.VirtualMachineInstanceIsMigratable) {
		t.Errorf("annotations %v, status %+v", vmi.Annotations, vmi.Status)
	}
}

func reportsTooLate(t *testing.T, p *pair) {
	vmi, answers := p.reports(t, func(vmi *v1.VirtualMachineInstance) { p.fence(t, vmi, p.a) })
	if len(answers) == 0 || !vmipatch.Refused(answers[0]) {
		t.Errorf("the report is answered by %v", answers)
	}
	if hasCondition(vmi, v1.VirtualMachineInstanceIsMigratable) {
		t.Errorf("a node reports a VMI without an owner: %+v", vmi.Status.Conditions)
	}
}
