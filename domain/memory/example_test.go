// SPDX-License-Identifier: Apache-2.0

package memory_test

import (
	"context"
	"fmt"

	"libvirt.org/go/libvirtxml"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/memory"
)

// An agent's answer to failures of the network is tried with migrations over a link that breaks.
func ExampleLink() {
	const to = "memory://node-b"
	ctx := context.Background()
	source, target := memory.New("node-a"), memory.New("node-b")
	nameOf := map[*memory.Hypervisor]string{source: "node-a", target: "node-b"}
	source.Connect(to, target)
	err := source.Apply(ctx, domain.Operation{Verb: domain.Start, Domain: "default_web", Definition: &libvirtxml.Domain{Type: "kvm", Name: "default_web"}})
	if err != nil {
		fmt.Println(err)
		return
	}
	source.SetLoad("default_web", memory.Load{Bytes: 1 << 30})
	link := source.Link(to)
	for _, fault := range []func(*memory.Link){
		(*memory.Link).Cut,                           // before the guest is copied
		func(l *memory.Link) { l.CutAtSwitch(true) }, // the source does not learn that it runs at the target
	} {
		link.Restore()
		fault(link)
		err := source.Migrate(ctx, domain.MigrationRequest{Domain: "default_web", DestinationURI: to})
		fmt.Println(err)
		for _, h := range []*memory.Hypervisor{source, target} {
			if st, err := h.Get(ctx, "default_web"); err == nil {
				fmt.Println(nameOf[h], st.Status)
			}
		}
	}
	// Output:
	// migrate default_web to memory://node-b: the connection to the destination broke
	// node-a Running
	// migrate default_web to memory://node-b: the destination has not confirmed that the domain runs there: the connection to the destination broke
	// node-a Paused
	// node-b Running
}
