// SPDX-License-Identifier: Apache-2.0

package informer_test

import (
	"context"
	"fmt"

	"libvirt.org/go/libvirtxml"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/informer"
	"github.com/virtloom/virtloom/domain/memory"
)

// A controller keeps a cache of the domains of its node, and receives their changes. The cache outlives
// a lost connection.
func ExampleInformer() {
	ctx, cancel := context.WithCancel(context.Background())
	h := memory.New("node-a")
	d := &libvirtxml.Domain{Type: "qemu", Name: "shop_web", UUID: "5b6c1a2e-0000-4000-8000-000000000001"}
	if err := h.Apply(ctx, domain.Operation{Verb: domain.Start, Domain: d.Name, Definition: d}); err != nil {
		fmt.Println(err)
	}

	i := &informer.Informer{Hypervisor: h}
	ended := make(chan error, 1)
	go func() { ended <- i.Run(ctx) }()
	change := <-i.Watch(ctx)
	fmt.Println(change.Name, change.New.Status)

	h.Disconnect()
	var c informer.Connection
	for c = i.Connection(); c.Up; c = i.Connection() {
		<-c.Changed
	}
	state, cached := i.Get(change.Name)
	fmt.Println(c.Err, cached, state.Status)
	cancel()
	fmt.Println(<-ended)
	// Output:
	// shop_web Running
	// hypervisor node-a: hypervisor disconnected true Running
	// <nil>
}
