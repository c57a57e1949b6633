// SPDX-License-Identifier: Apache-2.0

package validate

import (
	"encoding/base64"
	"fmt"
	"strings"

	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/internal/vmidefaults"
)

var featureRules = []Rule{
	{"hyperv", checkHyperv, false},
	{"hyperv-values", checkHypervValues, false},
	{"hyperv-dependencies", checkHypervDependencies, false},
	{"launch-security", checkLaunchSecurity, false},
	{"sev", checkSEV, false},
	{"clock", checkClock, false},
	{"timers", checkTimers, false},
}

func (k *checker) hyperv() *v1.FeatureHyperv {
	if k.domain.Features == nil {
		return nil
	}
	return k.domain.Features.Hyperv
}

func checkHyperv(k *checker) {
	f := k.domain.Features
	if f == nil || f.HypervPassthrough == nil || !isTrue(f.HypervPassthrough.Enabled) {
		return
	}
	at := atFeatures.child("hypervPassthrough.enabled")
	if f.Hyperv != nil {
		k.invalid(at, true, "is mutually exclusive with single features", "remove it, or "+atFeatures.child("hyperv").String())
	}
	if k.arch != vmidefaults.AMD64 {
		k.invalid(at, true, "Hyper-V is not supported on "+k.arch, "remove it")
	}
}

const (
	minSpinlockRetries = 4095
	maxVendorID        = 12
)

func checkHypervValues(k *checker) {
	h, at := k.hyperv(), atFeatures.child("hyperv")
	if h == nil {
		return
	}
	if k.arch != vmidefaults.AMD64 {
		k.invalid(at, "{}", "Hyper-V is not supported on "+k.arch, "remove it")
	}
	if s := h.Spinlocks; s != nil && s.Retries != nil && *s.Retries < minSpinlockRetries {
		k.invalid(at.child("spinlocks.spinlocks"), *s.Retries, "is too low", fmt.Sprintf("use at least %d", minSpinlockRetries))
	}
	if v := h.VendorID; v != nil && !isFalse(v.Enabled) && (v.VendorID == "" || len(v.VendorID) > maxVendorID || strings.Contains(v.VendorID, ",")) {
		k.invalid(at.child("vendorid.vendorid"), v.VendorID, "must be a valid vendor ID", fmt.Sprintf("use 1 to %d characters without a comma", maxVendorID))
	}
}

func checkHypervDependencies(k *checker) {
	h, at := k.hyperv(), atFeatures.child("hyperv")
	if h == nil {
		return
	}
	for _, dep := range vmidefaults.Dependencies {
		if needed := *dep.Needs(h); dep.Enabled(h) && needed != nil && isFalse(needed.Enabled) {
			k.invalid(at.child(dep.On).child("enabled"), false, "is required by "+dep.Name, "enable it, or disable "+dep.Name)
		}
	}
	if k.domain.CPU == nil || !vmidefaults.Enabled(h.EVMCS) {
		return
	}
	for i, f := range k.domain.CPU.Features {
		if f.Name == vmidefaults.VMX && (f.Policy == "disable" || f.Policy == "forbid") {
			k.invalid(atCPU.child("features").index(i).child("policy"), f.Policy, "disables a feature that evmcs requires", "use require, or disable evmcs")
		}
	}
}

func checkLaunchSecurity(k *checker) {
	s, at := k.domain.LaunchSecurity, atDomain.child("launchSecurity")
	if s == nil {
		return
	}
	ways := chosen(alternative{"sev", s.SEV != nil}, alternative{"snp", s.SNP != nil}, alternative{"tdx", s.TDX != nil})
	switch {
	case k.arch == vmidefaults.S390X && len(ways) == 0:
		return // secure execution has no alternatives
	case k.arch != vmidefaults.AMD64:
		k.invalid(at, strings.Join(ways, ", "), "is not supported on "+k.arch, "remove it, or use amd64")
		return
	}
	k.only(at, ways, "one of sev, snp and tdx")
	if k.efi() == nil {
		k.required(atFirmware.child("bootloader.efi"), "launch security requires UEFI", "set it with secureBoot: false")
	}
}

func checkSEV(k *checker) {
	if k.domain.LaunchSecurity == nil || k.domain.LaunchSecurity.SEV == nil {
		return
	}
	s, at := k.domain.LaunchSecurity.SEV, atDomain.child("launchSecurity.sev")
	for _, part := range []struct{ field, text string }{{"session", s.Session}, {"dhCert", s.DHCert}} {
		if _, err := base64.StdEncoding.DecodeString(part.text); err != nil {
			k.invalid(at.child(part.field), part.text, "must be base64", "use the output of the tool that created the session")
		}
	}
	if start := k.spec.StartStrategy; s.Attestation != nil && (start == nil || *start != v1.StartStrategyPaused) {
		k.required(atSpec.child("startStrategy"), "attestation requires a paused start", "set it to Paused")
	}
}

func checkClock(k *checker) {
	c, at := k.domain.Clock, atDomain.child("clock")
	switch {
	case c == nil:
	case c.UTC != nil && c.Timezone != nil:
		k.invalid(at, "utc, timezone", "must specify one alternative, not 2", "keep one")
	case c.Timezone != nil && *c.Timezone == "":
		k.required(at.child("timezone"), "must be set", "use a time zone such as Europe/Rome")
	}
}

func checkTimers(k *checker) {
	if k.domain.Clock == nil || k.domain.Clock.Timer == nil {
		return
	}
	t, at := k.domain.Clock.Timer, atDomain.child("clock.timer")
	policy := func(at *fieldPath, value string, known ...string) { oneOf(k, at.child("tickPolicy"), value, known...) }
	if t.HPET != nil {
		policy(at.child("hpet"), string(t.HPET.TickPolicy), "delay", "catchup", "merge", "discard")
	}
	if t.PIT != nil {
		policy(at.child("pit"), string(t.PIT.TickPolicy), "delay", "catchup", "discard")
	}
	if t.RTC != nil {
		policy(at.child("rtc"), string(t.RTC.TickPolicy), "delay", "catchup")
		oneOf(k, at.child("rtc.track"), t.RTC.Track, v1.TrackGuest, v1.TrackWall)
	}
}
