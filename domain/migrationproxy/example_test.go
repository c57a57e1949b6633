// SPDX-License-Identifier: Apache-2.0

package migrationproxy_test

import (
	"context"
	"fmt"

	"github.com/go-logr/logr"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/migrationproxy"
)

// A node agent makes one proxy, which is its transport in both directions, and ends it
// with the program.
func Example() {
	certificates, err := migrationproxy.ReadFiles("/etc/agent/tls.crt", "/etc/agent/tls.key", "/etc/agent/ca.crt", logr.Discard())
	if err != nil {
		fmt.Println("not there yet, tried again for each migration")
	}
	proxy, err := migrationproxy.New(migrationproxy.Options{
		Address: "192.0.2.7", NodeName: "node-a", Certificates: certificates,
		Sockets: func(context.Context, string) (domain.Sockets, error) {
			return domain.Sockets{Own: true, Control: "/run/libvirt/libvirt-sock", Outside: "/run/agent/migrations", Inside: "/run/agent/migrations"}, nil
		},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	var transport domain.Transport = proxy // for domainctrl.Reconciler; proxy.Start goes to the manager
	transport.Close("nothing is open")
	fmt.Println("migrations that are open:", len(proxy.Stats()))
	// Output:
	// not there yet, tried again for each migration
	// migrations that are open: 0
}

// Agents of a stock KubeVirt share certificates, distinguished by their common names.
func ExampleCommonNames() {
	stock := migrationproxy.Options{
		Identity: migrationproxy.CommonNames(
			"kubevirt.io:system:client:virt-handler", "kubevirt.io:system:client:migration",
			"kubevirt.io:system:node:virt-handler", "kubevirt.io:system:node:migration",
		),
	}
	fmt.Println(stock.Identity != nil)
	// Output: true
}
