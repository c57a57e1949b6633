// SPDX-License-Identifier: Apache-2.0

package fleet_test

import (
	"context"
	"errors"
	"fmt"

	"libvirt.org/go/libvirtxml"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/fleet"
	"github.com/virtloom/virtloom/domain/memory"
)

// Two launcher Pods have a hypervisor each. The fleet is the hypervisor of both domains; a launcher
// that does not answer is no evidence that its domain does not run.
func ExampleFleet() {
	ctx := context.Background()
	f := &fleet.Fleet{Node: memory.New("node-a"), Patience: fleet.DefaultPatience}
	defer f.Close()
	launchers := map[string]*memory.Hypervisor{}
	for i, name := range []string{"shop_db", "shop_web"} {
		launchers[name] = memory.New("virt-launcher-" + name)
		f.Join(ctx, name, launchers[name])
		d := &libvirtxml.Domain{Type: "qemu", Name: name, UUID: fmt.Sprintf("5b6c1a2e-0000-4000-8000-00000000000%d", i)}
		if err := f.Apply(ctx, domain.Operation{Verb: domain.Start, Domain: name, Definition: d}); err != nil {
			fmt.Println(err)
			return
		}
	}
	list := func() {
		states, err := f.List(ctx)
		for _, s := range states {
			fmt.Println(s.Name, s.Status, "stale:", !s.Stale.IsZero())
		}
		if err != nil {
			fmt.Println(err)
		}
	}
	list()
	launchers["shop_web"].Disconnect()
	list()
	f.Leave("shop_web")
	_, err := f.Get(ctx, "shop_web")
	fmt.Println(errors.Is(err, domain.ErrNoHypervisor))
	// Output:
	// shop_db Running stale: false
	// shop_web Running stale: false
	// shop_db Running stale: false
	// shop_web Running stale: true
	// true
}
