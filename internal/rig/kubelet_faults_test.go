// SPDX-License-Identifier: Apache-2.0

package rig_test

import (
	"context"
	"errors"
	"testing"
)

func (c cluster) survivesContainerd(t *testing.T) {
	c.survives(t, "one", func(ctx context.Context) error {
		if err := c.one.KillContainerd(); err != nil {
			return err
		}
		if c.one.KillContainerd() == nil {
			return errors.New("killed twice")
		}
		return c.one.StartContainerd(ctx)
	})
}

func (c cluster) survivesKubelet(t *testing.T) {
	c.survives(t, "two", func(ctx context.Context) error {
		if err := c.two.KillKubelet(); err != nil {
			return err
		}
		if err := c.two.StartKubelet(ctx); err != nil {
			return err
		}
		return c.two.StartKubelet(ctx) // which runs already
	})
}

// survives checks that the Pod of a node is the same after something has happened, and that the node takes Pods.
func (c cluster) survives(t *testing.T, node string, happens func(context.Context) error) {
	before := ready(t, c, node).Status.ContainerStatuses[0]
	if err := happens(t.Context()); err != nil {
		t.Fatal(err)
	}
	after := "after-" + node
	create(t, c, shellPod(after, node, "exec sleep 1000000"))
	ready(t, c, after)
	status := ready(t, c, node).Status.ContainerStatuses[0]
	if status.ContainerID != before.ContainerID || status.RestartCount != 0 {
		t.Errorf("the Pod's container %s was restarted %d times, and is %s now", before.ContainerID, status.RestartCount, status.ContainerID)
	}
	if got := c.in(t, node, "wget -qO- http://127.0.0.1:8080/"); got != node {
		t.Errorf("the Pod says %q", got)
	}
}

func (c cluster) losesNode(t *testing.T) {
	f, err := c.Fabric(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	url := "http://" + c.address(t, "two") + ":8080/"
	if err := f.Cut(t.Context(), c.two); err != nil {
		t.Fatal(err)
	}
	if got := c.in(t, "one", "timeout 1 wget -qO- "+url+" || echo nothing"); got != "nothing" {
		t.Errorf("two says %q", got)
	}
	if err := f.Mend(t.Context(), c.two); err != nil {
		t.Fatal(err)
	}
	if got := c.in(t, "one", "until wget -qO- "+url+"; do sleep 0.1; done"); got != "two" {
		t.Errorf("two says %q", got)
	}
}

// losesPower turns the node off and on: its processes and Pods end, its files stay.
func (c cluster) losesPower(t *testing.T) {
	const note = "/var/lib/virtloom/note"
	if out, err := c.two.Command(t.Context(), "sh", "-c", "echo kept >"+note).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	before := c.two.Address()
	if err := errors.Join(c.two.PowerOff(t.Context()), c.two.PowerOff(t.Context())); err != nil {
		t.Fatal(err)
	}
	if err := c.two.PowerOn(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := c.two.PowerOn(t.Context()); err == nil {
		t.Error("it was turned on twice")
	}
	if out, err := c.two.Command(t.Context(), "cat", note).Output(); err != nil || string(out) != "kept\n" || c.two.Address() != before {
		t.Errorf("the file has %q, %v; its address is %s", out, err, c.two.Address())
	}
	create(t, c, serving("after", "two"))
	if got := c.in(t, "one", "wget -qO- http://"+c.address(t, "after")+":8080/"); got != "after" {
		t.Errorf("a Pod says %q", got)
	}
}

// comesBack is last, as the Pods of the node are gone then.
func (c cluster) comesBack(t *testing.T) {
	if err := c.two.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := c.two.Stop(t.Context()); err != nil {
		t.Errorf("stopped again: %v", err)
	}
	again := startKubelets(t, c.Rig, "two")[0]
	if again.Address() == c.two.Address() {
		t.Errorf("it has the address %s again, which others may remember", again.Address())
	}
	create(t, c, serving("again", "two"))
	if got := c.in(t, "one", "wget -qO- http://"+c.address(t, "again")+":8080/"); got != "again" {
		t.Errorf("a Pod of the new node says %q", got)
	}
}
