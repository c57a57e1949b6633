// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"fmt"
	"slices"

	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/domain"
)

// hooksAnnotation lists sidecars that modify the domain before it is defined.
const hooksAnnotation = "hooks.kubevirt.io/hookSidecars"

// services rejects a VMI that needs a service the node does not provide: none of them is part of
// the domain, so the request would be ignored silently.
func services(c *Conversion) error {
	s, d := c.Facts.Services, &c.VMI.Spec.Domain.Devices
	field := fmt.Sprintf("metadata.annotations[%s]", hooksAnnotation)
	switch {
	case c.VMI.Annotations[hooksAnnotation] != "" && !s.Hooks:
		return c.unserved(field, "does not run hook sidecars", "remove it")
	case d.DownwardMetrics != nil && !s.DownwardMetrics:
		return c.unserved(specDevices+"downwardMetrics", "does not serve metrics to guests", "remove it")
	case d.TPM != nil && !specIsFalse(d.TPM.Enabled) && specIsTrue(d.TPM.Persistent) && !s.PersistentState:
		return c.unserved(specDevices+"tpm.persistent", "does not support persistent TPM state", "remove it")
	}
	for i := range c.VMI.Spec.AccessCredentials {
		if err := c.credential(fmt.Sprintf("spec.accessCredentials[%d]", i), &c.VMI.Spec.AccessCredentials[i]); err != nil {
			return err
		}
	}
	return nil
}

func (c *Conversion) unserved(field, reason, remedy string) error {
	return &Error{Object: c.object(), Field: field, Reason: "the node " + reason, Remedy: remedy, Err: domain.ErrUnsupported}
}

// credential checks that a credential can reach the guest and that the node propagates it.
func (c *Conversion) credential(field string, in *v1.AccessCredential) error {
	switch {
	case in.SSHPublicKey != nil && in.UserPassword != nil:
		return c.Invalid(field, "Forbidden: sshPublicKey and userPassword are mutually exclusive", "split it into two")
	case in.UserPassword != nil:
		field += ".userPassword"
		if in.UserPassword.PropagationMethod.QemuGuestAgent == nil {
			return c.Invalid(field+".propagationMethod", "Required value", "set qemuGuestAgent")
		}
		return c.byAgent(field)
	case in.SSHPublicKey == nil:
		return c.Invalid(field, "Required value: sshPublicKey or userPassword", "set sshPublicKey or userPassword")
	}
	field += ".sshPublicKey"
	m := in.SSHPublicKey.PropagationMethod
	switch {
	case m.QemuGuestAgent != nil:
		if len(m.QemuGuestAgent.Users) == 0 {
			return c.Invalid(field+".propagationMethod.qemuGuestAgent.users", "Required value", "list the users who get the key")
		}
		return c.byAgent(field)
	case m.NoCloud != nil:
		return c.byCloudInit(field+".propagationMethod.noCloud", "cloudInitNoCloud", func(v v1.Volume) bool { return v.CloudInitNoCloud != nil })
	case m.ConfigDrive != nil:
		return c.byCloudInit(field+".propagationMethod.configDrive", "cloudInitConfigDrive", func(v v1.Volume) bool { return v.CloudInitConfigDrive != nil })
	}
	return c.Invalid(field+".propagationMethod", "Required value", "set qemuGuestAgent, noCloud or configDrive")
}

func (c *Conversion) byAgent(field string) error {
	if c.Facts.Services.AgentCredentials {
		return nil
	}
	return c.unserved(field+".propagationMethod.qemuGuestAgent", "does not propagate credentials by guest agent",
		"put keys and passwords into cloud-init user data")
}

func (c *Conversion) byCloudInit(field, volume string, is func(v1.Volume) bool) error {
	switch {
	case !slices.ContainsFunc(c.VMI.Spec.Volumes, is):
		return c.Invalid(field, "no volume of kind "+volume, "add one, or use another propagation method")
	case !c.Facts.Services.CloudInitKeys:
		return c.unserved(field, "does not add keys to cloud-init data", "put them into cloud-init user data")
	}
	return nil
}
