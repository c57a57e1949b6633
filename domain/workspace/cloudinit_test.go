// SPDX-License-Identifier: Apache-2.0

package workspace_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/domain/convert"
	"github.com/virtloom/virtloom/domain/internal/domainfixture"
)

// sshKey is a credential of a Secret with one of both propagation methods.
func sshKey(secret string, noCloud bool) v1.AccessCredential {
	a := v1.AccessCredential{SSHPublicKey: &v1.SSHPublicKeyAccessCredential{}}
	a.SSHPublicKey.Source.Secret = &v1.AccessCredentialSecretSource{SecretName: secret}
	if noCloud {
		a.SSHPublicKey.PropagationMethod.NoCloud = &v1.NoCloudSSHPublicKeyAccessCredentialPropagation{}
	} else {
		a.SSHPublicKey.PropagationMethod.ConfigDrive = &v1.ConfigDriveSSHPublicKeyAccessCredentialPropagation{}
	}
	return a
}

func cloudGuest() *v1.VirtualMachineInstance {
	vmi := guest("6e2a3a4e-0000-4000-8000-000000000001")
	vmi.Name = strings.Repeat("n", 70) + ".example"
	vmi.Annotations = map[string]string{v1.InstancetypeAnnotation: "small", v1.ClusterInstancetypeAnnotation: "u1.small"}
	vmi.Spec.AccessCredentials = []v1.AccessCredential{
		sshKey("first", true), sshKey("second", true), sshKey("first", false), {UserPassword: &v1.UserPasswordAccessCredential{}},
	}
	vmi.Spec.Domain.Devices.Interfaces = []v1.Interface{{Name: "default", Tag: "uplink"}, {Name: "own", Tag: "lan", MacAddress: "02:00:00:00:00:01"}, {Name: "plain"}}
	vmi.Spec.Domain.Devices.Disks = []v1.Disk{{Name: "conf", Tag: "seed", Serial: "S1", DiskDevice: v1.DiskDevice{Disk: &v1.DiskTarget{Bus: v1.DiskBusVirtio}}}}
	return vmi
}

var cloudObjects = objects{
	"secret/ns/first":  {"b": "ssh-rsa B", "a": "ssh-rsa A", "none": ""},
	"secret/ns/second": {"c": "ssh-rsa C"},
	"secret/ns/user":   {"userData": "#cloud-config\n"},
	"secret/ns/net":    {"networkdata": "version: 2\n"},
}

func TestCloudInit_SecretsAndKeys(t *testing.T) {
	w, vmi := newWorkspace(t), cloudGuest()
	w.Objects = cloudObjects
	vmi.Spec.Volumes = []v1.Volume{volumeOf(v1.VolumeSource{CloudInitNoCloud: &v1.CloudInitNoCloudSource{
		UserData: "not this", UserDataSecretRef: ref("user"), NetworkDataSecretRef: ref("net"),
	}})}
	label, files := disc(t, prepare(t, w, vmi).Disks["conf"].Path)
	want := map[string]string{
		"meta-data": `{"instance-type":"u1.small","instance-id":"` + string(vmi.UID) + `","local-hostname":"` + strings.Repeat("n", 63) +
			`","public-keys":{"0":"ssh-rsa A","1":"ssh-rsa B","2":"ssh-rsa C"}}` + "\n",
		"user-data": "#cloud-config\n", "network-config": "version: 2\n",
	}
	if diff := cmp.Diff(want, files); label != "cidata" || diff != "" {
		t.Fatalf("label %s, files (-want +got):\n%s", label, diff)
	}
}

func TestConfigDrive_OpenStackContent(t *testing.T) {
	w, vmi := newWorkspace(t), cloudGuest()
	w.Objects = cloudObjects
	vmi.Spec.Domain.Firmware = &v1.Firmware{UUID: "5d307ca9-b3ef-428c-8861-06e72d69f223"}
	vmi.Spec.Volumes = []v1.Volume{volumeOf(v1.VolumeSource{CloudInitConfigDrive: &v1.CloudInitConfigDriveSource{
		UserDataBase64: "IyEvYmluL3NoCg==", NetworkData: "{}",
	}})}
	label, files := disc(t, prepare(t, w, vmi).Disks["conf"].Path)
	var meta map[string]any
	if err := json.Unmarshal([]byte(files["openstack/latest/meta_data.json"]), &meta); err != nil {
		t.Fatal(err)
	}
	wantMeta := map[string]any{
		"instance_type": "u1.small", "instance_id": vmi.Name + ".ns", "hostname": strings.Repeat("n", 63),
		"uuid": "5d307ca9-b3ef-428c-8861-06e72d69f223", "public_keys": map[string]any{"0": "ssh-rsa A", "1": "ssh-rsa B"},
		"devices": []any{
			map[string]any{"type": "nic", "bus": "pci", "mac": convert.MAC(vmi.UID, "default"), "tags": []any{"uplink"}},
			map[string]any{"type": "nic", "bus": "pci", "mac": "02:00:00:00:00:01", "tags": []any{"lan"}},
			map[string]any{"type": "disk", "bus": "virtio", "serial": "S1", "tags": []any{"seed"}},
		},
	}
	if diff := cmp.Diff(wantMeta, meta); diff != "" {
		t.Errorf("metadata (-want +got):\n%s", diff)
	}
	delete(files, "openstack/latest/meta_data.json")
	want := map[string]string{"openstack/latest/user_data": "#!/bin/sh\n", "openstack/latest/network_data.json": "{}"}
	if diff := cmp.Diff(want, files); label != "config-2" || diff != "" {
		t.Errorf("label %s, files (-want +got):\n%s", label, diff)
	}
}

func TestCloudInit_UnreadableCredential(t *testing.T) {
	w, vmi := newWorkspace(t), cloudGuest()
	w.Objects = objects{"secret/ns/first": {"a": "k"}}
	vmi.Spec.Volumes = []v1.Volume{volumeOf(v1.VolumeSource{CloudInitNoCloud: &v1.CloudInitNoCloudSource{UserData: "x"}})}
	_, err := w.Prepare(t.Context(), vmi, kvmHost)
	domainfixture.Says(t, err, "spec.accessCredentials[1].sshPublicKey.source.secret.secretName", "second", "create it")
}
