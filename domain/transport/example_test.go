// SPDX-License-Identifier: Apache-2.0

package transport_test

import (
	"context"
	"errors"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/domain/transport"
)

// Both nodes read the migration from the VMI: the target listens for it, and the source dials what the
// target has published.
func ExampleTransport() {
	ctx := context.Background()
	vmi := &v1.VirtualMachineInstance{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", UID: "5b6c1a2e-0000-4000-8000-000000000001"},
		Status: v1.VirtualMachineInstanceStatus{MigrationState: &v1.VirtualMachineInstanceMigrationState{
			MigrationUID: "9d3f0c77-0000-4000-8000-000000000001", SourceNode: "node-a", TargetNode: "node-b",
		}},
	}
	var source, target transport.Transport = transport.Direct{Address: "192.0.2.7", Port: 16509}, transport.Direct{Address: "192.0.2.8", Port: 16509}

	arrives, leaves := transport.TunnelOf(vmi, "node-b"), transport.TunnelOf(vmi, "node-a")
	at, err := target.Listen(ctx, arrives)
	err = errors.Join(err, at.Check(transport.ChannelControl))
	route, failed := source.Dial(ctx, leaves, at)

	fmt.Println(arrives.Domain, "from", arrives.Peer, "to", leaves.Peer)
	fmt.Println(route.DestinationURI, errors.Join(err, failed))
	target.Close(arrives.Key)
	// Output:
	// shop_web from node-a to node-b
	// qemu+tcp://192.0.2.8:16509/system <nil>
}
