// SPDX-License-Identifier: Apache-2.0

package workspace

import (
	"context"
	"fmt"

	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/convert"
)

// DedicatedCPUs returns the host CPUs dedicated to a VMI, in ascending order: those of the cpuset
// of its Pod.
type DedicatedCPUs func(ctx context.Context, vmi *v1.VirtualMachineInstance) ([]uint, error)

// nodeFacts reads what a conversion has to know of the node.
type nodeFacts struct{ *Workspace }

// describe fills in the facts of the node and the cluster, the same for every VMI.
func (w nodeFacts) describe(ctx context.Context, vmi *v1.VirtualMachineInstance, host domain.Host, f *convert.Facts) error {
	var kv *v1.KubeVirt
	var err error
	if w.Settings != nil {
		if kv, err = w.Settings(ctx); err != nil {
			return err
		}
	}
	f.Cluster, f.SMBIOS = convert.ClusterFrom(kv)
	f.Cells = host.Cells
	dirs := w.FirmwareDirs
	if dirs == nil {
		dirs = defaultFirmwareDirs
	}
	installed := onNode
	if w.Pods != nil {
		root, err := w.Pods.Folder(ctx, vmi, "/")
		if err != nil {
			return &convert.Error{Object: objectName(vmi), Reason: "cannot look for firmware in its launcher", Err: err}
		}
		defer root.Close()
		installed = inImage(root)
	}
	f.Firmware = findFirmware(f.Arch, dirs, installed)
	cpu := vmi.Spec.Domain.CPU
	if w.DedicatedCPUs == nil || cpu == nil || !cpu.DedicatedCPUPlacement {
		return nil
	}
	if f.CPUs, err = w.DedicatedCPUs(ctx, vmi); err != nil {
		return fmt.Errorf("workspace: dedicated CPUs of %s/%s: %w", vmi.Namespace, vmi.Name, err)
	}
	return nil
}

// Migrations returns the cluster's migration configuration; nil for KubeVirt's defaults.
func (w *Workspace) Migrations(ctx context.Context) (*v1.MigrationConfiguration, error) {
	if w.Settings == nil {
		return nil, nil
	}
	kv, err := w.Settings(ctx)
	if err != nil || kv == nil {
		return nil, err
	}
	return kv.Spec.Configuration.MigrationConfiguration, nil
}
