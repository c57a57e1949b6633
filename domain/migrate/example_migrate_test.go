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
