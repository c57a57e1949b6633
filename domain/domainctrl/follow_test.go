// SPDX-License-Identifier: Apache-2.0

package domainctrl_test

import (
	"testing"

	"k8s.io/apimachinery/pkg/api/resource"
	v1 "kubevirt.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/virtloom/virtloom/domain/internal/domainfixture"
	"github.com/virtloom/virtloom/domain/plan"
	"github.com/virtloom/virtloom/domain/status"
	"github.com/virtloom/virtloom/handoff"
)

// slowly is an option that makes a migration outlast the test's next steps.
func slowly(o *v1.VMIMConfigurationOptions) {
	rate, never := resource.MustParse("1Mi"), int64(0)
	o.BandwidthPerMigration, o.CompletionTimeoutPerGiB = &rate, &never
}

// options changes the options of the VMI's migration, as the controller does.
func (p *pair) options(t *testing.T, vmi *v1.VirtualMachineInstance, edit func(*v1.VMIMConfigurationOptions)) {
	t.Helper()
	p.get(t, vmi)
	was := vmi.DeepCopy()
	edit(vmi.Status.MigrationState.VMIMConfigurationOptions)
	domainfixture.Must(t, p.Patch(t.Context(), vmi, client.MergeFrom(was)))
}

func unlimited(o *v1.VMIMConfigurationOptions) { o.BandwidthPerMigration = nil }

func changed(t *testing.T, p *pair) {
	p.start(t)
	vmi := p.leaving(t, 0, slowly)
	p.until(t, "the guest to be on its way", vmi, func(handoff.Lease) bool { _, reported := status.ProgressOf(vmi); return reported })
	if n := p.a.Calls("SetMigrationBandwidth") + p.a.Calls("SetMaxDowntime"); n != 0 {
		t.Errorf("the migration was changed %d times by what it began with", n)
	}
	p.options(t, vmi, unlimited)
	p.runsOn(t, vmi, p.b)
	if n := p.a.Calls("SetMigrationBandwidth"); n != 1 || p.a.Calls("SetMaxDowntime") != 0 {
		t.Errorf("its bandwidth was set %d times, its standstill %d times", n, p.a.Calls("SetMaxDowntime"))
	}
	p.finish(t, vmi)
}

// changedMeanwhile: the options change while there is no agent at the source.
func changedMeanwhile(t *testing.T, p *pair) {
	died := p.a.startDoomed(t, plan.SourceMoving)
	p.b.start(t)
	vmi := p.leaving(t, 0, slowly)
	<-died
	p.options(t, vmi, unlimited)
	p.runsOn(t, vmi, p.b)
	if n := p.a.Calls("Migrate"); n != 1 || p.a.Calls("SetMigrationBandwidth") == 0 {
		t.Errorf("it began to move %d times, its bandwidth was set %d times", n, p.a.Calls("SetMigrationBandwidth"))
	}
	p.finish(t, vmi)
}
