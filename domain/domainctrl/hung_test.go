// SPDX-License-Identifier: Apache-2.0

package domainctrl_test

import (
	"fmt"
	"testing"
	"time"

	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/domainctrl"
	"github.com/virtloom/virtloom/domain/memory"
	"github.com/virtloom/virtloom/handoff"
)

func manyHang(t *testing.T, p *pair) {
	const guests = 20
	p.a.edit = func(r *domainctrl.Reconciler) {
		r.Workers, r.CallTimeout, r.WorkerWait = 2, time.Hour, interval
	}
	var hung []*v1.VirtualMachineInstance
	var free []func()
	for n := range guests {
		vmi := p.create(t, fmt.Sprintf("hung-%d", n))
		free = append(free, p.a.Inject(memory.Fault{Call: "MigrationProgress", Domain: domain.Name(vmi.Namespace, vmi.Name), Hang: true}))
		hung = append(hung, vmi)
	}
	p.a.start(t)
	for _, vmi := range hung {
		p.offer(t, vmi, p.a)
	}
	eventually(t, "the guests to hang", func() bool { return p.a.Calls("MigrationProgress") >= guests })
	for _, name := range []string{"one", "two", "three"} {
		vmi := p.create(t, name)
		p.offer(t, vmi, p.a)
		p.until(t, "the guest to run beside them", vmi, func(handoff.Lease) bool { return vmi.Status.Phase == v1.Running })
	}
	for n, vmi := range hung {
		free[n]()
		p.runsOn(t, vmi, p.a)
	}
}
