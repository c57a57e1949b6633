// SPDX-License-Identifier: Apache-2.0

package launcher_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"libvirt.org/go/libvirtxml"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/launcher"
	"github.com/virtloom/virtloom/domain/memory"
)

// boot is what a launcher does in the folder that it shares with its node.
func boot(ctx context.Context, dir string) (l *launcher.Listener, served <-chan error, err error) {
	if l, err = launcher.Listen(ctx, dir); err != nil {
		return nil, nil, err
	}
	server := &launcher.Server{
		Hypervisor: memory.New("launcher"), Shared: dir,
		Guest: launcher.Guest{Namespace: "default", Name: "web", UID: "5b6c1a2e"},
	}
	done := make(chan error, 1)
	go func() { done <- server.Serve(ctx, l) }()
	return l, done, nil
}

// The agent of a node starts the domain of a VMI in its launcher.
func Example() {
	ctx, end := context.WithCancel(context.Background())
	defer end()
	dir, err := os.MkdirTemp("", "sockets")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	l, served, err := boot(ctx, dir)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer l.Close()
	_, err = os.Stat(filepath.Join(dir, launcher.BootingSocket))
	fmt.Println("boots:", err == nil)
	_, err = launcher.Dial(ctx, filepath.Join(dir, launcher.ReadySocket), launcher.Options{})
	fmt.Println("not ready:", errors.Is(err, domain.ErrNotReady))
	if err := l.Ready(); err != nil {
		fmt.Println(err)
		return
	}
	client, err := launcher.Dial(ctx, filepath.Join(dir, launcher.ReadySocket), launcher.Options{Root: dir})
	if err != nil {
		fmt.Println(err)
		return
	}
	start(ctx, client)
	fmt.Println(client.Close())
	end()
	fmt.Println(<-served)
	// Output:
	// boots: true
	// not ready: true
	// start default_web <nil>
	// get default_other: get default_other: not found, true
	// <nil>
	// <nil>
}

// start starts the domain, and looks for one that the launcher does not have.
func start(ctx context.Context, c *launcher.Client) {
	name := c.Guest().Domain()
	err := c.Apply(ctx, domain.Operation{Verb: domain.Start, Domain: name, Definition: &libvirtxml.Domain{Type: "kvm", Name: name}})
	fmt.Println("start", name, err)

	_, err = c.Get(ctx, "default_other")
	var failed *launcher.Error
	if errors.As(err, &failed) {
		fmt.Printf("%s %s: %s, %t\n", failed.Op, failed.Domain, failed.Message, errors.Is(err, domain.ErrNotFound))
	}
}
