// SPDX-License-Identifier: Apache-2.0

package migrate_test

import (
	"context"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/convert"
	"github.com/virtloom/virtloom/domain/memory"
	"github.com/virtloom/virtloom/domain/migrate"
)

func movingVMI() *v1.VirtualMachineInstance {
	size := resource.MustParse("64Mi")
	return &v1.VirtualMachineInstance{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web", UID: "5b6c1a2e-0000-4000-8000-000000000001"},
		Spec: v1.VirtualMachineInstanceSpec{
			Domain: v1.DomainSpec{
				Memory: &v1.Memory{Guest: &size},
				Devices: v1.Devices{
					Disks: []v1.Disk{{Name: "root", DiskDevice: v1.DiskDevice{Disk: &v1.DiskTarget{Bus: v1.DiskBusVirtio}}}},
				},
			},
			Volumes: []v1.Volume{{Name: "root", VolumeSource: v1.VolumeSource{
				PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{},
			}}},
		},
	}
}

func movingFacts() convert.Facts {
	return convert.Facts{
		Dir:   "/var/lib/virtloom/guests/web",
		Disks: map[string]convert.DiskSource{"root": {Path: "/srv/volumes/root.img", Shared: true}},
	}
}

// A guest that rewrites its memory faster than the link copies it would never complete its migration.
// The monitor detects that the budget for its size is exceeded, and advises what the settings permit:
// here the switch to post-copy.
func ExampleMonitor() {
	const mib, to = 1 << 20, "memory://node-2"
	ctx := context.Background()

	// Two nodes, a link between them, and a guest on the first.
	source, target := memory.New("node-1"), memory.New("node-2")
	source.Connect(to, target)
	source.Link(to).SetBandwidth(1024 * mib)
	d, err := convert.Convert(movingVMI(), movingFacts())
	if err != nil {
		fmt.Println(err)
		return
	}
	if err := source.Apply(ctx, domain.Operation{Verb: domain.Start, Domain: d.Name, Definition: d}); err != nil {
		fmt.Println(err)
		return
	}
	source.SetLoad(d.Name, memory.Load{Bytes: 512 * mib, DirtyBytesPerSecond: 2048 * mib})

	settings := migrate.MigrationSettings{
		CompletionPerGB: time.Second, ProgressTimeout: time.Minute, PostCopy: true, AllowWorkloadDisruption: true,
	}
	done := make(chan error, 1)
	go func() {
		done <- source.Migrate(ctx, domain.MigrationRequest{Domain: d.Name, DestinationURI: to, PostCopy: settings.PostCopy})
	}()

	monitor := migrate.Monitor{Settings: settings, Bytes: 512 * mib}
	ticker := time.NewTicker(migrate.MonitorEvery)
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
			case migrate.SwitchToPostCopy:
				fmt.Println("switch to post-copy:", advice.Why)
				if source.SwitchToPostCopy(ctx, d.Name) != nil {
					monitor.Refuse(advice.Action)
				}
			case migrate.AbortMove:
				fmt.Println("abort:", advice.Why, source.AbortMigration(ctx, d.Name))
			}
		}
	}
	for _, h := range []*memory.Hypervisor{source, target} {
		st, err := h.Get(ctx, d.Name)
		fmt.Println(st.Status, st.Reason, err)
	}
	// Output:
	// switch to post-copy: migration has exceeded its completion timeout of 1s, and workload disruption is allowed
	// the migration has ended: <nil>
	// Shutoff Migrated <nil>
	// Running Unknown <nil>
}

// The options of a migration are those of the cluster, over KubeVirt's defaults.
func ExampleMigrationSettingsOf() {
	vmi := movingVMI()
	cluster := &v1.MigrationConfiguration{AllowPostCopy: new(true), ProgressTimeout: new(int64(60))}
	for _, c := range []*v1.MigrationConfiguration{nil, cluster} {
		s := migrate.MigrationSettingsOf(vmi, c)
		fmt.Println("post-copy:", s.PostCopy, "- defaults:", s.ProgressTimeout == migrate.DefaultProgressTimeout,
			s.CompletionPerGB == migrate.DefaultCompletionPerGB, s.MaxDowntime == migrate.DefaultMaxDowntime)
		fmt.Println("budget with a disk of 20 GB:", s.Budget(migrate.MovingBytes(vmi, 20_000_000_000)))
	}
	// Output:
	// post-copy: false - defaults: true true true
	// budget with a disk of 20 GB: 52m30s
	// post-copy: true - defaults: false true true
	// budget with a disk of 20 GB: 52m30s
}

// A guest rewrites its memory as fast as it is copied. The detector finds that the rest has not become
// smaller for a while, long before the budget is exceeded.
func ExampleStallSettings() {
	const mib = 1 << 20
	settings := migrate.MigrationSettingsOf(movingVMI(), nil)
	settings.Stall = &migrate.StallSettings{Margin: 0.04, Window: 40 * time.Second, Switchover: time.Minute, Alpha: 0.4, Possible: 1.5, Decay: 0.5, Completion: 2}
	monitor := migrate.Monitor{Settings: settings, Bytes: 2048 * mib}
	start := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	rest := []uint64{2048, 1000, 990, 1010, 1005, 990}
	for pass, remaining := range rest {
		elapsed := time.Duration(pass) * 11 * time.Second
		advice := monitor.Observe(domain.Progress{
			Active: true, Elapsed: elapsed, Iteration: uint64(pass + 1), Remaining: remaining * mib, BytesPerSecond: 100 * mib,
		}, false, start.Add(elapsed))
		if advice.Action != migrate.Carry {
			fmt.Println("pass", pass+1, advice.Action, "-", advice.Why)
		}
	}
	// Output:
	// pass 6 Abort - migration does not converge: copying the rest takes 9.9s, the maximum downtime is 900ms
}
