// SPDX-License-Identifier: Apache-2.0

package network_test

import (
	"context"
	"errors"
	"fmt"
	"os"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/network"
)

// The bridge of a network is not on the node yet: the caller retries, and no guest starts until then.
func ExampleBridges() {
	dir, err := os.MkdirTemp("", "networks")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	bridges := &network.Bridges{
		Bridge: func(_ *v1.VirtualMachineInstance, n v1.Network) (string, error) { return "br-" + n.Name, nil },
		Taps:   true, User: 107, Group: 107, Records: dir,
	}
	vmi := &v1.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web", UID: "5b6c1a2e"}}
	vmi.Spec.Networks = []v1.Network{{Name: "missing"}}
	vmi.Spec.Domain.Devices.Interfaces = []v1.Interface{{Name: "missing"}}

	links, err := bridges.Prepare(context.Background(), vmi)
	fmt.Println(links, err)
	fmt.Println("retry:", errors.Is(err, domain.ErrNotReady))
	// When the VMI has ended:
	fmt.Println(bridges.Release(context.Background(), vmi.UID))
	// Output:
	// map[] waiting for network "missing": link br-missing: not found: not ready
	// retry: true
	// <nil>
}

// The device that carries the packets of an interface, such as for tcpdump on the node.
func ExampleTapName() {
	fmt.Println(network.TapName("5b6c1a2e-0000-4000-8000-000000000001", "default"))
	// Output: tap87b3c4d77e9c
}
