// SPDX-License-Identifier: Apache-2.0

package validate

import (
	"slices"

	"k8s.io/apimachinery/pkg/util/validation"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/internal/vmidefaults"
)

var deviceRules = []Rule{
	{"passed-through", checkPassedThrough, false},
	{"permitted-devices", checkPermittedDevices, false},
	{"resource-claims", checkResourceClaims, true},
	{"inputs", checkInputs, false},
	{"watchdog", checkWatchdog, false},
	{"panic-devices", checkPanicDevices, false},
	{"video", checkVideo, false},
	{"sound", checkSound, false},
	{"tpm", checkTPM, false},
	{"usb", checkUSB, false},
	{"access-credentials", checkCredentialSources, true},
	{"access-credentials", checkPropagation, false},
}

// passedThrough is a host device of the VMI.
type passedThrough struct {
	at     *fieldPath
	name   string
	device string
	claim  *v1.ClaimRequest
}

func (k *checker) passedThrough() (all []passedThrough) {
	for i := range k.devices.GPUs {
		g := &k.devices.GPUs[i]
		all = append(all, passedThrough{atDevices.child("gpus").index(i), g.Name, g.DeviceName, g.ClaimRequest})
	}
	for i := range k.devices.HostDevices {
		h := &k.devices.HostDevices[i]
		all = append(all, passedThrough{atDevices.child("hostDevices").index(i), h.Name, h.DeviceName, h.ClaimRequest})
	}
	return all
}

func checkPassedThrough(k *checker) {
	taken := names{}
	for _, p := range k.passedThrough() {
		if !diskName.MatchString(p.name) {
			k.invalid(p.at.child("name"), p.name, "must be a valid device name", "use 1 to 63 letters, digits, - and _")
		}
		taken.take(k, p.at.child("name"), p.name)
		k.only(p.at, chosen(alternative{"deviceName", p.device != ""}, alternative{"claimName", p.claim != nil}), "deviceName, or claimName and requestName")
		if p.device != "" {
			k.text(p.at.child("deviceName"), p.device, LabelKey, "use the name of a node resource, such as example.com/card")
		}
		if p.claim != nil {
			checkClaimRequest(k, p.at, p.claim)
		}
	}
}

// checkClaimRequest reports a request to a resource claim that the VMI does not have.
func checkClaimRequest(k *checker, at *fieldPath, c *v1.ClaimRequest) {
	if c.RequestName == "" {
		k.required(at.child("requestName"), "must be set", "use the name of a request of the claim")
	}
	if !slices.ContainsFunc(k.spec.ResourceClaims, func(r v1.VirtualMachineInstanceResourceClaim) bool { return r.Name == c.ClaimName }) {
		k.invalid(at.child("claimName"), c.ClaimName, "resource claim is not defined", "add it to spec.resourceClaims")
	}
}

func checkPermittedDevices(k *checker) {
	permitted := k.config.PermittedHostDevices
	if permitted == nil {
		return
	}
	known := map[string]bool{}
	for _, d := range permitted.PciHostDevices {
		known[d.ResourceName] = true
	}
	for _, d := range permitted.MediatedDevices {
		known[d.ResourceName] = true
	}
	for _, d := range permitted.USB {
		known[d.ResourceName] = true
	}
	for _, p := range k.passedThrough() {
		if p.device != "" && !known[p.device] {
			k.invalid(p.at.child("deviceName"), p.device, "is not permitted in this cluster",
				"add it to spec.configuration.permittedHostDevices of the KubeVirt object, or use another device")
		}
	}
}

func checkResourceClaims(k *checker) {
	taken := names{}
	for i := range k.spec.ResourceClaims {
		c, at := &k.spec.ResourceClaims[i], atSpec.child("resourceClaims").index(i)
		k.text(at.child("name"), c.Name, validation.IsDNS1123Label, useDNSLabel)
		taken.take(k, at.child("name"), c.Name)
		k.only(at, chosen(alternative{"resourceClaimName", c.ResourceClaimName != nil}, alternative{"resourceClaimTemplateName", c.ResourceClaimTemplateName != nil}),
			"resourceClaimName or resourceClaimTemplateName")
	}
}

func checkInputs(k *checker) {
	taken := names{}
	for i := range k.devices.Inputs {
		in, at := &k.devices.Inputs[i], atDevices.child("inputs").index(i)
		if !diskName.MatchString(in.Name) {
			k.invalid(at.child("name"), in.Name, "must be a valid device name", "use 1 to 63 letters, digits, - and _")
		}
		taken.take(k, at.child("name"), in.Name)
		oneOf(k, at.child("type"), in.Type, v1.InputTypeTablet)
		oneOf(k, at.child("bus"), in.Bus, v1.InputBusUSB, v1.InputBusVirtio)
		if in.Bus != v1.InputBusVirtio && vmidefaults.TraitsOf(k.arch).NoUSB {
			k.invalid(at.child("bus"), in.Bus, "USB is not supported on "+k.arch, "use virtio")
		}
	}
}

func checkWatchdog(k *checker) {
	w, at := k.devices.Watchdog, atDevices.child("watchdog")
	if w == nil {
		return
	}
	if k.arch == vmidefaults.ARM64 {
		k.invalid(at, w.Name, "watchdogs are not supported on arm64", "remove it")
		return
	}
	if w.I6300ESB != nil {
		oneOf(k, at.child("i6300esb.action"), w.I6300ESB.Action, v1.WatchdogActionReset, v1.WatchdogActionPoweroff, v1.WatchdogActionShutdown)
	}
	if w.Diag288 != nil {
		oneOf(k, at.child("diag288.action"), w.Diag288.Action, v1.WatchdogActionReset, v1.WatchdogActionPoweroff, v1.WatchdogActionShutdown)
	}
	switch {
	case w.I6300ESB != nil && k.arch == vmidefaults.S390X:
		k.invalid(at.child("i6300esb"), "{}", "is not supported on s390x", "use diag288")
	case w.Diag288 != nil && k.arch == vmidefaults.AMD64:
		k.invalid(at.child("diag288"), "{}", "is not supported on amd64", "use i6300esb")
	}
}

func checkPanicDevices(k *checker) {
	models := map[string][]v1.PanicDeviceModel{vmidefaults.AMD64: {v1.Isa, v1.Hyperv, v1.Pvpanic}, vmidefaults.ARM64: {v1.Pvpanic}}[k.arch]
	for i, p := range k.devices.PanicDevices {
		at := atDevices.child("panicDevices").index(i).child("model")
		switch {
		case len(models) == 0:
			k.invalid(at, p.Model, "panic devices are not supported on "+k.arch, "remove it")
		case p.Model != nil:
			oneOf(k, at, *p.Model, models...)
		}
	}
}

var videoModels = map[string][]string{
	vmidefaults.AMD64: {"vga", "virtio", "bochs", "cirrus", "ramfb", "qxl"}, vmidefaults.ARM64: {"virtio", "ramfb"}, vmidefaults.S390X: {"virtio"},
}

func checkVideo(k *checker) {
	v, at := k.devices.Video, atDevices.child("video")
	if v == nil {
		return
	}
	if isFalse(k.devices.AutoattachGraphicsDevice) {
		k.invalid(at, v.Type, "requires a graphics device", "set autoattachGraphicsDevice, or remove it")
	}
	oneOf(k, at.child("type"), v.Type, videoModels[k.arch]...)
}

func checkSound(k *checker) {
	s, at := k.devices.Sound, atDevices.child("sound")
	if s == nil {
		return
	}
	if !diskName.MatchString(s.Name) {
		k.invalid(at.child("name"), s.Name, "must be a valid device name", "use 1 to 63 letters, digits, - and _")
	}
	oneOf(k, at.child("model"), s.Model, "ich9", "ac97")
}

func checkTPM(k *checker) {
	if t := k.devices.TPM; t != nil && !isFalse(t.Enabled) && k.arch == vmidefaults.S390X {
		k.invalid(atDevices.child("tpm"), "{}", "TPM is not supported on s390x", "remove it")
	}
}

func checkUSB(k *checker) {
	if k.devices.ClientPassthrough != nil && vmidefaults.TraitsOf(k.arch).NoUSB {
		k.invalid(atDevices.child("clientPassthrough"), "{}", "USB is not supported on "+k.arch, "remove it")
	}
}

// checkCredentialSources accepts both kinds for an existing VMI, whose Pod has the Secrets of both.
func checkCredentialSources(k *checker) {
	for i := range k.spec.AccessCredentials {
		c, at := &k.spec.AccessCredentials[i], atSpec.child("accessCredentials").index(i)
		if !k.existing || c.SSHPublicKey == nil || c.UserPassword == nil {
			k.only(at, chosen(alternative{"sshPublicKey", c.SSHPublicKey != nil}, alternative{"userPassword", c.UserPassword != nil}), "sshPublicKey or userPassword")
		}
		if p := c.UserPassword; p != nil {
			checkCredentialSecret(k, at.child("userPassword.source.secret"), p.Source.Secret)
		}
		if s := c.SSHPublicKey; s != nil {
			checkCredentialSecret(k, at.child("sshPublicKey.source.secret"), s.Source.Secret)
		}
	}
}

// checkCredentialSecret reports a missing name, or the invalid one of a new VMI: the renderer checks the name of the volume.
func checkCredentialSecret(k *checker, at *fieldPath, s *v1.AccessCredentialSecretSource) {
	switch {
	case s == nil:
		k.required(at, "must be set", "set the name of the Secret")
	case !k.existing || s.SecretName == "":
		k.text(at.child("secretName"), s.SecretName, validation.IsDNS1123Subdomain, useDNSName)
	}
}

func checkPropagation(k *checker) {
	for i := range k.spec.AccessCredentials {
		c, at := &k.spec.AccessCredentials[i], atSpec.child("accessCredentials").index(i)
		if p := c.UserPassword; p != nil {
			k.only(at.child("userPassword.propagationMethod"), chosen(alternative{"qemuGuestAgent", p.PropagationMethod.QemuGuestAgent != nil}), "qemuGuestAgent")
		}
		if s := c.SSHPublicKey; s != nil {
			checkSSHPropagation(k, at.child("sshPublicKey.propagationMethod"), &s.PropagationMethod)
		}
	}
}

func checkSSHPropagation(k *checker, at *fieldPath, m *v1.SSHPublicKeyAccessCredentialPropagationMethod) {
	k.only(at, chosen(alternative{"configDrive", m.ConfigDrive != nil}, alternative{"noCloud", m.NoCloud != nil}, alternative{"qemuGuestAgent", m.QemuGuestAgent != nil}),
		"qemuGuestAgent, noCloud or configDrive")
	if m.QemuGuestAgent != nil && len(m.QemuGuestAgent.Users) == 0 {
		k.required(at.child("qemuGuestAgent.users"), "must not be empty", "list the users that get the key")
	}
	for _, way := range []struct {
		field string
		set   bool
		is    func(v1.Volume) bool
	}{
		{"noCloud", m.NoCloud != nil, func(v v1.Volume) bool { return v.CloudInitNoCloud != nil }},
		{"configDrive", m.ConfigDrive != nil, func(v v1.Volume) bool { return v.CloudInitConfigDrive != nil }},
	} {
		if way.set && !slices.ContainsFunc(k.spec.Volumes, way.is) {
			k.invalid(at.child(way.field), "{}", "requires a cloud-init volume of this kind", "add the volume, or use another propagation method")
		}
	}
}
