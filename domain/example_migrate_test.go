// SPDX-License-Identifier: Apache-2.0

package domain_test

import (
	"context"
	"fmt"
	"time"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/domaintest"
)

// A guest that rewrites its memory faster than the link carries it would never be done. The monitor
// notices when the time is up that its size allows, and what the settings permit is then done to it:
// here it runs at the target before all of its memory is there.
func ExampleMonitor() {
	const mib, to = 1 << 20, "memory://node-2"
	ctx := context.Background()

	// Two nodes, a link between them, and a guest on the first.
	source, target := domaintest.New("node-1"), domaintest.New("node-2")
	source.Connect(to, target)
	source.Link(to).SetBandwidth(1024 * mib)
	d, err := domain.Convert(exampleVMI(), exampleFacts())
	if err != nil {
		fmt.Println(err)
		return
	}
	if err := source.Apply(ctx, domain.Operation{Verb: domain.Start, Domain: d.Name, Definition: d}); err != nil {
		fmt.Println(err)
		return
	}
	source.SetLoad(d.Name, domaintest.Load{Bytes: 512 * mib, DirtyBytesPerSecond: 2048 * mib})

	settings := domain.MigrationSettings{
		CompletionPerGB: time.Second, ProgressTimeout: time.Minute, PostCopy: true, AllowWorkloadDisruption: true,
	}
	done := make(chan error, 1)
	go func() {
		done <- source.Migrate(ctx, domain.MigrationRequest{Domain: d.Name, DestinationURI: to, PostCopy: settings.PostCopy})
	}()

	monitor := domain.Monitor{Settings: settings, Bytes: 512 * mib}
	ticker := time.NewTicker(domain.MonitorEvery)
	defer ticker.Stop()
	for moving := true; moving; {
		select {
		case err := <-done:
			fmt.Println("the migration has ended:", err)
			moving = false
		case now := <-ticker.C:
			p, err := source.MigrationProgress(ctx, d.Name)
			if err != nil || !p.Active {
				continue
			}
			switch advice := monitor.Observe(p, false, now); advice.Action {
			case domain.SwitchToPostCopy:
				fmt.Println("switch to post-copy:", advice.Why)
				if source.SwitchToPostCopy(ctx, d.Name) != nil {
					monitor.Refuse(advice.Action)
				}
			case domain.AbortMove:
				fmt.Println("abort:", advice.Why, source.AbortMigration(ctx, d.Name))
			}
		}
	}
	for _, h := range []*domaintest.Hypervisor{source, target} {
		st, err := h.Get(ctx, d.Name)
		fmt.Println(st.Status, st.Reason, err)
	}
	// Output:
	// switch to post-copy: it has taken longer than the 1s it may for its size, and the guest may be disturbed
	// the migration has ended: <nil>
	// Shutoff Migrated <nil>
	// Running Unknown <nil>
}
