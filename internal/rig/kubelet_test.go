// SPDX-License-Identifier: Apache-2.0

package rig_test

import (
	"context"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/virtloom/virtloom/internal/rig"
	"github.com/virtloom/virtloom/internal/rig/rigtest"
)

// startKubelets starts nodes of these names at the same time.
func startKubelets(t *testing.T, r *rig.Rig, names ...string) []*rig.KubeletNode {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	started := time.Now()
	nodes := make([]*rig.KubeletNode, len(names))
	group, ctx := errgroup.WithContext(ctx)
	for i, name := range names {
		group.Go(func() (err error) {
			nodes[i], err = r.StartKubeletNode(ctx, rig.KubeletNodeOptions{Name: name})
			return err
		})
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
	t.Logf("%d nodes Ready after %v", len(nodes), time.Since(started).Round(time.Millisecond))
	return nodes
}

func TestKubelet(t *testing.T) {
	started := time.Now()
	r := rigtest.Start(t, rig.Options{Kubelets: true})
	t.Logf("rig started in %v", time.Since(started).Round(time.Millisecond))
	startKubelets(t, r, "one", "two")
}
