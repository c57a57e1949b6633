// SPDX-License-Identifier: Apache-2.0

//go:build faultpoints

package main

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"os"

	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/virtloom/virtloom/domain/domainctrl"
	"github.com/virtloom/virtloom/domain/plan"
)

// faultVariable names a unix socket that receives the steps of migrations, one line each: node, VMI and
// step. The agent continues when a line comes back, so that tests can kill it at a step. Only a daemon
// built with the tag faultpoints does this.
const faultVariable = "VIRTLOOM_FAULTPOINTS"

func onStep(node string) domainctrl.StepFunc {
	path := os.Getenv(faultVariable)
	if path == "" {
		return nil
	}
	return func(ctx context.Context, vmi types.NamespacedName, step plan.MigrationStep) {
		if err := ask(ctx, path, fmt.Sprintf("%s %s %s\n", node, vmi, step)); err != nil {
			ctrl.LoggerFrom(ctx).Error(err, "Failed to notify fault point listener", "step", step)
		}
	}
}

// ask sends a line and waits for the answer.
func ask(ctx context.Context, path, line string) error {
	var d net.Dialer
	c, err := d.DialContext(ctx, "unix", path)
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }()
	defer context.AfterFunc(ctx, func() { _ = c.Close() })()
	if _, err := c.Write([]byte(line)); err != nil {
		return err
	}
	_, err = bufio.NewReader(c).ReadString('\n')
	return err
}
