// SPDX-License-Identifier: Apache-2.0

package domain

import (
	"fmt"
	"slices"

	v1 "kubevirt.io/api/core/v1"
)

// hooksAnnotation lists containers that change the domain before it is defined.
const hooksAnnotation = "hooks.kubevirt.io/hookSidecars"

// services refuses what somebody on the node has to do for the guest and nobody
// does: none of it is in the domain, so it would be lost without a word.
func services(c *Conversion) error {
	s, d := c.Facts.Services, &c.VMI.Spec.Domain.Devices
	field := fmt.Sprintf("metadata.annotations[%s]", hooksAnnotation)
	switch {
	case c.VMI.Annotations[hooksAnnotation] != "" && !s.Hooks:
		return c.unserved(field, "does not call hooks before it defines a domain", "remove it")
	case d.DownwardMetrics != nil && !s.DownwardMetrics:
		return c.unserved(specDevices+"downwardMetrics", "does not serve metrics to guests", "remove it")
	case d.TPM != nil && !isFalse(d.TPM.Enabled) && isTrue(d.TPM.Persistent) && !s.PersistentState:
		return c.unserved(specDevices+"tpm.persistent", "does not keep the state of a TPM beyond its guest", "remove it")
	}
	for i := range c.VMI.Spec.AccessCredentials {
		if err := c.credential(fmt.Sprintf("spec.accessCredentials[%d]", i), &c.VMI.Spec.AccessCredentials[i]); err != nil {
			return err
		}
	}
	return nil
}

func (c *Conversion) unserved(field, reason, remedy string) error {
	return &Error{Object: c.object(), Field: field, Reason: "the node " + reason, Remedy: remedy, Err: ErrUnsupported}
}

// credential checks that the way into the guest exists and that somebody goes it.
func (c *Conversion) credential(field string, in *v1.AccessCredential) error {
	switch {
	case in.SSHPublicKey != nil && in.UserPassword != nil:
		return c.Invalid(field, "is both a key and a password", "make it two")
	case in.UserPassword != nil:
		field += ".userPassword"
		if in.UserPassword.PropagationMethod.QemuGuestAgent == nil {
			return c.Invalid(field+".propagationMethod", "names no way into the guest", "set qemuGuestAgent")
		}
		return c.byAgent(field)
	case in.SSHPublicKey == nil:
		return c.Invalid(field, "is neither a key nor a password", "set sshPublicKey or userPassword")
	}
	field += ".sshPublicKey"
	m := in.SSHPublicKey.PropagationMethod
	switch {
	case m.QemuGuestAgent != nil:
		if len(m.QemuGuestAgent.Users) == 0 {
			return c.Invalid(field+".propagationMethod.qemuGuestAgent.users", "names nobody", "name the users who get the key")
		}
		return c.byAgent(field)
	case m.NoCloud != nil:
		return c.byCloudInit(field+".propagationMethod.noCloud", "cloudInitNoCloud", func(v v1.Volume) bool { return v.CloudInitNoCloud != nil })
	case m.ConfigDrive != nil:
		return c.byCloudInit(field+".propagationMethod.configDrive", "cloudInitConfigDrive", func(v v1.Volume) bool { return v.CloudInitConfigDrive != nil })
	}
	return c.Invalid(field+".propagationMethod", "names no way into the guest", "set qemuGuestAgent, noCloud or configDrive")
}

func (c *Conversion) byAgent(field string) error {
	if c.Facts.Services.AgentCredentials {
		return nil
	}
	return c.unserved(field+".propagationMethod.qemuGuestAgent", "does not hand credentials to guest agents",
		"put keys and passwords into cloud-init user data")
}

func (c *Conversion) byCloudInit(field, volume string, is func(v1.Volume) bool) error {
	switch {
	case !slices.ContainsFunc(c.VMI.Spec.Volumes, is):
		return c.Invalid(field, "there is no volume of kind "+volume, "add one, or choose another way")
	case !c.Facts.Services.CloudInitKeys:
		return c.unserved(field, "does not add keys to cloud-init data", "put them into cloud-init user data")
	}
	return nil
}
