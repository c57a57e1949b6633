// SPDX-License-Identifier: Apache-2.0

// Package refguest reads the corpus of VMIs, template/testdata/corpus, which together set every field of a
// VirtualMachineInstance.
package refguest

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/internal/rig"
	"github.com/virtloom/virtloom/template/offline"
)

// Corpus returns the VMIs by file name without suffix, as the webhooks of KubeVirt's API server leave them. Files without a
// VMI are omitted. It works in any directory of the module.
func Corpus() (map[string]*v1.VirtualMachineInstance, error) {
	bin, err := rig.BinDir()
	if err != nil {
		return nil, fmt.Errorf("read VMI corpus: %w", err)
	}
	files, err := filepath.Glob(filepath.Join(filepath.Dir(bin), "template/testdata/corpus/*.yaml"))
	if err != nil || len(files) == 0 {
		return nil, fmt.Errorf("read VMI corpus: not found next to %s: %w", bin, err)
	}
	out := map[string]*v1.VirtualMachineInstance{}
	for _, file := range files {
		vmi, err := read(file)
		if err != nil {
			return nil, fmt.Errorf("read VMI corpus: %w", err)
		}
		if vmi != nil {
			out[strings.TrimSuffix(filepath.Base(file), ".yaml")] = vmi
		}
	}
	return out, nil
}

func read(file string) (*v1.VirtualMachineInstance, error) {
	content, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	objects, err := offline.Read(file, bytes.NewReader(content))
	if err != nil {
		return nil, err
	}
	cluster, err := offline.NewCluster(objects...)
	if err != nil || cluster.VMI == nil {
		return nil, err
	}
	return offline.Default(cluster.VMI, cluster.KubeVirt)
}
