// SPDX-License-Identifier: Apache-2.0

// Command demo demonstrates virtloom with real components: it starts a control
// plane and two nodes with kubelet and containerd on this machine, installs virtloom from its manifests and images, starts a VirtualMachine by
// applying a manifest, restarts it, gives it another CPU while it runs, migrates it live, drains its node, stops and deletes it, and checks
// that exactly one guest runs all the time. Its exit status is 0 only if all of that was observed. "make demo" builds it and the daemon it runs.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"
)

// stopTimeout bounds the clean-up.
const stopTimeout = time.Minute

// errLookedAround ends a demo that was kept running, when its user is done.
var errLookedAround = errors.New("looked around")

func main() {
	keep := flag.Bool("keep", false, "leave everything running after the migration, to look around")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	err := run(ctx, *keep)
	stop()
	switch {
	case err == nil:
	case errors.Is(err, context.Canceled):
		fmt.Println("Interrupted; everything was removed.")
		os.Exit(130)
	default:
		fmt.Fprintln(os.Stderr, "FAILED:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, keep bool) (err error) {
	s := &story{log: &transcript{out: os.Stdout, began: time.Now(), terminal: isTerminal(os.Stdout)}}
	defer func() {
		clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
		defer cancel()
		switch {
		case errors.Is(err, errLookedAround):
			err = s.close(clean, nil)
			return
		case ctx.Err() != nil:
			err = errors.Join(context.Canceled, s.close(clean, nil))
			return
		}
		err = errors.Join(err, s.close(clean, err))
		s.log.summary(err)
	}()
	vm := machine{s}
	for _, act := range []struct {
		title string
		play  func(context.Context) error
	}{
		{"Starting a control plane and two nodes", s.stage},
		{"Installing virtloom: the controller, and an agent on each node", s.install},
		{"Applying the manifests of a guest (examples/first-guest)", s.start},
		{"Restarting the VM", vm.restart},
		{"Giving the VM another CPU while its guest runs", vm.update},
		{"Migrating the guest to the other node, live", s.migrate},
		{"Looking around", s.look(keep)},
		{"Draining the node of the guest", s.drain},
		{"Stopping the VM", vm.halt},
		{"Deleting the VM", vm.remove},
		{"Stopping everything", s.stop},
	} {
		s.log.heading(act.title)
		if err := act.play(ctx); err != nil {
			return err
		}
	}
	return nil
}
