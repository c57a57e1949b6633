// SPDX-License-Identifier: Apache-2.0

package migrationctrl

import (
	"context"
	"encoding/json"
	"fmt"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	backupv1 "kubevirt.io/api/backup/v1alpha1"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/migration"
)

// BackupAborter aborts a backup that blocks a critical migration. Success means that the
// abort was requested; the VMI's status reports the end.
type BackupAborter interface {
	AbortBackup(ctx context.Context, vmi *v1.VirtualMachineInstance, backup string) error
}

// VirtAPI aborts backups as KubeVirt does: by the subresource "backup" of its virt-api,
// which must be deployed.
type VirtAPI struct{ client rest.Interface }

// NewVirtAPI returns a client of the subresources for the cluster of the configuration.
func NewVirtAPI(c *rest.Config) (*VirtAPI, error) {
	c = rest.CopyConfig(c)
	c.APIPath = "/apis"
	c.ContentType = "application/json"
	c.GroupVersion = &schema.GroupVersion{Group: "subresources.kubevirt.io", Version: v1.ApiLatestVersion}
	c.NegotiatedSerializer = scheme.Codecs.WithoutConversion()
	cl, err := rest.RESTClientFor(c)
	if err != nil {
		return nil, fmt.Errorf("migrationctrl: client of virt-api: %w", err)
	}
	return &VirtAPI{client: cl}, nil
}

// +kubebuilder:rbac:groups=subresources.kubevirt.io,resources=virtualmachineinstances/backup,verbs=update

// AbortBackup requests the end of the backup from virt-api.
func (a *VirtAPI) AbortBackup(ctx context.Context, vmi *v1.VirtualMachineInstance, backup string) error {
	body, err := json.Marshal(backupv1.BackupOptions{BackupName: backup, Cmd: backupv1.Abort})
	if err != nil {
		return fmt.Errorf("migrationctrl: abort backup %s: %w", backup, err)
	}
	err = a.client.Put().Namespace(vmi.Namespace).Resource("virtualmachineinstances").Name(vmi.Name).
		SubResource("backup").Body(body).Do(ctx).Error()
	if err != nil {
		return fmt.Errorf("migrationctrl: abort backup %s of VirtualMachineInstance %s/%s: %w", backup, vmi.Namespace, vmi.Name, err)
	}
	return nil
}

// abortBackup ends the backup of the VMI.
func (r actor) abortBackup(ctx context.Context, g *gathered, a migration.Action) error {
	backup := a.Name
	if r.Backups == nil {
		return migration.ErrNoAborter
	}
	if err := r.Backups.AbortBackup(ctx, g.VMI, backup); err != nil {
		return err
	}
	g.BackupAborted = true
	return nil
}
