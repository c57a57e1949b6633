// SPDX-License-Identifier: Apache-2.0

package workspace

import (
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/convert"
)

// Labels by which cloud-init's data sources find their disks.
const (
	noCloudLabel     = "cidata"
	configDriveLabel = "config-2"
)

// Ends of the names of volumes with Secrets in a launcher Pod (KubeVirt: withCloudInitVolumes,
// withAccessCredentials): of a cloud-init volume, and of a Secret with credentials.
const (
	userDataVolume    = "-udata"
	networkDataVolume = "-ndata"
	credentialsVolume = "-access-cred"
)

// configDriveDir is the directory of the data in a config drive (OpenStack: configuration drive,
// format latest).
const configDriveDir = "openstack/latest/"

// noCloud makes the disk of cloud-init's data source NoCloud.
func (w generated) noCloud(ctx context.Context, v volume) (convert.DiskSource, error) {
	c := cloudInit{generated: w, volume: v, field: "cloudInitNoCloud", CloudInitNoCloudSource: v.CloudInitNoCloud}
	return v.seeded(c.field, func() (string, []seed, error) {
		user, network, err := c.data(ctx)
		if err != nil {
			return "", nil, err
		}
		keys, err := c.publicKeys(ctx, func(m *v1.SSHPublicKeyAccessCredentialPropagationMethod) bool { return m.NoCloud != nil })
		if err != nil {
			return "", nil, err
		}
		meta, err := noCloudMeta(v.vmi, keys)
		files := []seed{{"meta-data", meta}, {"user-data", user}}
		if len(network) > 0 {
			files = append(files, seed{"network-config", network})
		}
		return noCloudLabel, files, err
	})
}

// configDrive makes the disk of cloud-init's data source ConfigDrive.
func (w generated) configDrive(ctx context.Context, v volume) (convert.DiskSource, error) {
	source := v1.CloudInitNoCloudSource(*v.CloudInitConfigDrive)
	c := cloudInit{generated: w, volume: v, field: "cloudInitConfigDrive", CloudInitNoCloudSource: &source}
	return v.seeded(c.field, func() (string, []seed, error) {
		user, network, err := c.data(ctx)
		if err != nil {
			return "", nil, err
		}
		keys, err := c.publicKeys(ctx, func(m *v1.SSHPublicKeyAccessCredentialPropagationMethod) bool { return m.ConfigDrive != nil })
		if err != nil {
			return "", nil, err
		}
		meta, err := configDriveMeta(v.vmi, keys)
		files := []seed{{configDriveDir + "meta_data.json", meta}, {configDriveDir + "user_data", user}}
		if len(network) > 0 {
			files = append(files, seed{configDriveDir + "network_data.json", network})
		}
		return configDriveLabel, files, err
	})
}

// cloudInit is the data of one cloud-init volume; both kinds have the same fields.
type cloudInit struct {
	generated
	volume
	field string
	*v1.CloudInitNoCloudSource
}

// data returns user and network data; a Secret takes precedence over the spec.
func (c cloudInit) data(ctx context.Context) (user, network []byte, err error) {
	if user, err = c.inline("userDataBase64", c.UserData, c.UserDataBase64); err != nil {
		return nil, nil, err
	}
	if network, err = c.inline("networkDataBase64", c.NetworkData, c.NetworkDataBase64); err != nil {
		return nil, nil, err
	}
	if ref := c.UserDataSecretRef; ref != nil {
		if user, err = c.fromSecret(ctx, "secretRef", objectRef{name: ref.Name, volume: c.Name + userDataVolume}, "userdata", "userData"); err != nil {
			return nil, nil, err
		}
	}
	if ref := c.NetworkDataSecretRef; ref != nil {
		if network, err = c.fromSecret(ctx, "networkDataSecretRef", objectRef{name: ref.Name, volume: c.Name + networkDataVolume}, "networkdata", "networkData"); err != nil {
			return nil, nil, err
		}
	}
	return user, network, nil
}

func (c cloudInit) inline(field, plain, encoded string) ([]byte, error) {
	if plain != "" {
		return []byte(plain), nil
	}
	data, err := base64.StdEncoding.DecodeString(encoded)
	if err != nil {
		return nil, c.fault(c.field+"."+field, "Invalid value: not base64", "encode the data, or set it as plain text", err)
	}
	return data, nil
}

// fromSecret returns the value of the first of the names that the Secret contains.
func (c cloudInit) fromSecret(ctx context.Context, field string, secret objectRef, names ...string) ([]byte, error) {
	field = c.field + "." + field
	files, err := c.configFiles(ctx, c.vmi, secret, c.blame(field))
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		for _, f := range files {
			if f.name == name {
				return f.data, nil
			}
		}
	}
	return nil, c.fault(field, fmt.Sprintf("Secret %q has no key %s", secret.name, strings.Join(names, " or ")), "add the key", domain.ErrInvalid)
}

// publicKeys returns the SSH keys of spec.accessCredentials that reach the guest by the given
// propagation method, numbered in the order of the spec and of the Secrets' keys.
func (c cloudInit) publicKeys(ctx context.Context, thisWay func(*v1.SSHPublicKeyAccessCredentialPropagationMethod) bool) (map[string]string, error) {
	keys := map[string]string{}
	for i, a := range c.vmi.Spec.AccessCredentials {
		if a.SSHPublicKey == nil || a.SSHPublicKey.Source.Secret == nil || !thisWay(&a.SSHPublicKey.PropagationMethod) {
			continue
		}
		name := a.SSHPublicKey.Source.Secret.SecretName
		files, err := c.configFiles(ctx, c.vmi, objectRef{name: name, volume: name + credentialsVolume}, func(reason, remedy string, err error) error {
			return &convert.Error{
				Object: objectName(c.vmi), Field: fmt.Sprintf("spec.accessCredentials[%d].sshPublicKey.source.secret.secretName", i),
				Reason: reason, Remedy: remedy, Err: err,
			}
		})
		if err != nil {
			return nil, err
		}
		for _, f := range files {
			if len(f.data) > 0 {
				keys[strconv.Itoa(len(keys))] = string(f.data)
			}
		}
	}
	return keys, nil
}

// noCloudMeta identifies the instance by the VMI's UID: cloud-init repeats its once-per-instance
// modules for a new VMI only. JSON is valid YAML.
func noCloudMeta(vmi *v1.VirtualMachineInstance, keys map[string]string) ([]byte, error) {
	return metadata(struct {
		InstanceType string            `json:"instance-type,omitempty"`
		InstanceID   string            `json:"instance-id"`
		Hostname     string            `json:"local-hostname"`
		Keys         map[string]string `json:"public-keys,omitempty"`
	}{instanceType(vmi), string(vmi.UID), hostname(vmi), keys})
}

// configDriveMeta is OpenStack's meta_data.json. cloud-init uses uuid as the identity of the
// instance.
func configDriveMeta(vmi *v1.VirtualMachineInstance, keys map[string]string) ([]byte, error) {
	return metadata(struct {
		InstanceType string            `json:"instance_type,omitempty"`
		InstanceID   string            `json:"instance_id"`
		Hostname     string            `json:"hostname"`
		UUID         string            `json:"uuid"`
		Devices      []taggedDevice    `json:"devices,omitempty"`
		Keys         map[string]string `json:"public_keys,omitempty"`
	}{instanceType(vmi), vmi.Name + "." + vmi.Namespace, hostname(vmi), convert.UUID(vmi), taggedDevices(vmi), keys})
}

func metadata(content any) ([]byte, error) {
	meta, err := json.Marshal(content)
	if err != nil {
		return nil, fmt.Errorf("workspace: cloud-init metadata: %w", err)
	}
	return append(meta, '\n'), nil
}

// taggedDevice identifies a tagged device to the guest (OpenStack: device role tagging) by what is
// known before the domain is defined: a hardware address, or a serial number.
type taggedDevice struct {
	Type   string   `json:"type"`
	Bus    string   `json:"bus"`
	MAC    string   `json:"mac,omitempty"`
	Serial string   `json:"serial,omitempty"`
	Tags   []string `json:"tags"`
}

func taggedDevices(vmi *v1.VirtualMachineInstance) []taggedDevice {
	var out []taggedDevice
	for _, in := range vmi.Spec.Domain.Devices.Interfaces {
		if in.Tag != "" && in.SRIOV == nil {
			out = append(out, taggedDevice{Type: "nic", Bus: "pci", Tags: []string{in.Tag}, MAC: cmp.Or(in.MacAddress, convert.MAC(vmi.UID, in.Name))})
		}
	}
	for _, d := range vmi.Spec.Domain.Devices.Disks {
		if d.Tag != "" && d.Disk != nil {
			out = append(out, taggedDevice{Type: "disk", Bus: string(d.Disk.Bus), Tags: []string{d.Tag}, Serial: d.Serial})
		}
	}
	return out
}

func instanceType(vmi *v1.VirtualMachineInstance) string {
	return cmp.Or(vmi.Annotations[v1.ClusterInstancetypeAnnotation], vmi.Annotations[v1.InstancetypeAnnotation])
}

// hostname is the spec's, else the first part of the VMI's name.
func hostname(vmi *v1.VirtualMachineInstance) string {
	if vmi.Spec.Hostname != "" {
		return vmi.Spec.Hostname
	}
	first, _, _ := strings.Cut(vmi.Name, ".")
	return first[:min(len(first), validation.DNS1123LabelMaxLength)]
}
