// SPDX-License-Identifier: Apache-2.0

package rig

import (
	"bytes"
	"context"
	"embed"
	"fmt"
	"os"
	"path/filepath"
)

// The stages of a simulated kubelet; each file says what it models.
//
//go:embed kwok/*.yaml
var kwokFiles embed.FS

// kwokAnnotation marks the nodes that kwok manages.
const (
	kwokAnnotation = "kwok.x-k8s.io/node"
	kwokManaged    = "fake"
)

func (r controlPlane) startKwok(ctx context.Context) error {
	text, err := kwokConfig()
	if err != nil {
		return fmt.Errorf("start kwok: %w", err)
	}
	config := filepath.Join(r.dir, "etc", "kwok.yaml")
	if err := os.WriteFile(config, text, 0o644); err != nil {
		return fmt.Errorf("start kwok: %w", err)
	}
	user := r.Kubeconfig("kwok")
	return r.serve(ctx, server{
		name: "kwok",
		args: []string{
			"--config=" + config, "--kubeconfig=" + user,
			"--manage-all-nodes=false", "--manage-nodes-with-annotation-selector=" + kwokAnnotation + "=" + kwokManaged,
			"--cidr=10.64.0.0/12", "--node-ip=127.0.0.1", "--node-lease-duration-seconds=40",
			"--server-address=127.0.0.1:" + r.ports.kwok,
		},
		ready: "http://127.0.0.1:" + r.ports.kwok + "/healthz",
	})
}

// kwokConfig is the one file that kwok reads: its options and all stages.
func kwokConfig() ([]byte, error) {
	entries, err := kwokFiles.ReadDir("kwok")
	if err != nil {
		return nil, err
	}
	var parts [][]byte
	for _, entry := range entries {
		part, err := kwokFiles.ReadFile("kwok/" + entry.Name())
		if err != nil {
			return nil, err
		}
		parts = append(parts, part)
	}
	return bytes.Join(parts, []byte("---\n")), nil
}
