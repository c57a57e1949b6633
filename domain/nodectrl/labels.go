// SPDX-License-Identifier: Apache-2.0

package nodectrl

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
	v1 "kubevirt.io/api/core/v1"
	"libvirt.org/go/libvirtxml"

	"github.com/virtloom/virtloom/domain"
)

// Facts are the input of a node's labels.
type Facts struct {
	domain.Capabilities
	// Realtime reports that realtime tasks may use all of a CPU's time (kernel.sched_rt_runtime_us
	// is -1).
	Realtime bool
}

// LabelConfig is the cluster's configuration of node labels.
type LabelConfig struct {
	// Obsolete are the CPU models that no node is labelled with.
	Obsolete []string
	// Architectures reports that nodes are labelled with the architectures of their guests.
	Architectures bool
}

// defaultObsolete are the CPU models that are obsolete in KubeVirt unless its object names some;
// each has a name with -v1 as well.
var defaultObsolete = []string{
	"486", "pentium", "pentium2", "pentium3", "pentiumpro", "coreduo", "n270", "core2duo", "Conroe", "athlon", "phenom",
	"qemu64", "qemu32", "kvm64", "kvm32",
}

// crossArchitecture is KubeVirt's gate for guests of other architectures than their node's.
const crossArchitecture = "CrossArchitectureVirtualization"

// LabelConfigOf reads a LabelConfig from the KubeVirt object: spec.configuration.obsoleteCPUModels
// and the gate CrossArchitectureVirtualization. kv may be nil.
func LabelConfigOf(kv *v1.KubeVirt) LabelConfig {
	var c LabelConfig
	if kv != nil {
		for model, obsolete := range kv.Spec.Configuration.ObsoleteCPUModels {
			if obsolete {
				c.Obsolete = append(c.Obsolete, model)
			}
		}
		dev := kv.Spec.Configuration.DeveloperConfiguration
		c.Architectures = dev != nil && slices.Contains(dev.FeatureGates, crossArchitecture)
	}
	if kv == nil || kv.Spec.Configuration.ObsoleteCPUModels == nil {
		for _, model := range defaultObsolete {
			c.Obsolete = append(c.Obsolete, model, model+"-v1")
		}
	}
	slices.Sort(c.Obsolete)
	return c
}

// prefixes and names are the keys of all labels that [Labels] may return.
var (
	prefixes = []string{
		v1.CPUFeatureLabel, v1.CPUModelLabel, v1.SupportedHostModelMigrationCPU, v1.CPUTimerLabel, v1.CPUModelVendorLabel,
		v1.HostModelCPULabel, v1.HostModelRequiredFeaturesLabel, v1.HypervLabel, v1.SupportedMachineTypeLabel, v1.VMArchLabel,
	}
	names = []string{
		v1.RealtimeLabel, v1.SEVLabel, v1.SEVESLabel, v1.SEVSNPLabel, v1.SecureExecutionLabel, v1.TDXLabel, v1.NodeHostModelIsObsoleteLabel,
	}
)

// Owned reports whether a label of a Node is one of those that [Labels] returns, for some node.
func Owned(key string) bool {
	return slices.Contains(names, key) || slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(key, p) })
}

// Labels returns KubeVirt's labels that report the capabilities of a node. A CPU model that is
// usable there has a label cpu-model.node.kubevirt.io/<model>, one that is known
// cpu-model-migration.node.kubevirt.io/<model>: for a guest that was started with it elsewhere.
// Values that are not valid label names are left out. The error names the description that cannot
// be parsed.
func Labels(f Facts, c LabelConfig) (map[string]string, error) {
	var host libvirtxml.Caps
	if err := host.Unmarshal(f.Host); err != nil {
		return nil, fmt.Errorf("nodectrl: parse the hypervisor's capabilities: %w", err)
	}
	var guest libvirtxml.DomainCaps
	if err := guest.Unmarshal(f.Domain); err != nil {
		return nil, fmt.Errorf("nodectrl: parse the hypervisor's domain capabilities: %w", err)
	}
	b := &labels{arch: guest.Arch, config: c, all: map[string]string{}}
	if err := b.features(f.CPU); err != nil {
		return nil, err
	}
	b.models(guest.CPU)
	b.host(&host)
	b.security(guest.Features)
	if f.Realtime {
		b.all[v1.RealtimeLabel] = ""
	}
	return b.all, nil
}

// labels are being built.
type labels struct {
	arch   string // libvirt's name
	config LabelConfig
	all    map[string]string
}

func (b *labels) add(prefix, name, value string) {
	if key := prefix + name; name != "" && len(validation.IsQualifiedName(key)) == 0 {
		b.all[key] = value
	}
}

func (b *labels) each(prefix string, names ...string) {
	for _, name := range names {
		b.add(prefix, name, "true")
	}
}

// hasModels reports whether CPUs of this architecture have models that guests can choose: elsewhere
// they have the host's.
func (b *labels) hasModels() bool { return b.arch == "x86_64" || b.arch == "i686" || b.arch == "s390x" }

// features adds those of the widest CPU.
func (b *labels) features(text string) error {
	if text == "" || !b.hasModels() {
		return nil
	}
	var cpu libvirtxml.DomainCPU
	if err := cpu.Unmarshal(text); err != nil {
		return fmt.Errorf("nodectrl: parse the hypervisor CPU baseline: %w", err)
	}
	for _, f := range cpu.Features {
		if b.required(f.Policy) {
			b.add(v1.CPUFeatureLabel, f.Name, "true")
		}
	}
	return nil
}

// required reports whether a feature with this policy is available. On s390x there are no policies.
func (b *labels) required(policy string) bool {
	return policy == "require" || policy == "" && b.arch == "s390x"
}

func (b *labels) models(cpu *libvirtxml.DomainCapsCPU) {
	if cpu == nil || !b.hasModels() {
		return
	}
	for i := range cpu.Modes {
		m := &cpu.Modes[i]
		switch {
		case m.Supported != "yes":
		case m.Name == v1.CPUModeHostModel:
			b.hostModel(m)
		case m.Name == "custom":
			b.custom(m)
		}
	}
}

// custom adds the models that a guest can name.
func (b *labels) custom(m *libvirtxml.DomainCapsCPUMode) {
	for _, model := range m.Models {
		if slices.Contains(b.config.Obsolete, model.Name) {
			continue
		}
		b.add(v1.SupportedHostModelMigrationCPU, model.Name, "true")
		if model.Usable != "no" && model.Usable != "" {
			b.add(v1.CPUModelLabel, model.Name, "true")
		}
	}
}

// hostModel adds the CPU of a guest with the model host-model.
func (b *labels) hostModel(m *libvirtxml.DomainCapsCPUMode) {
	vendor := m.Vendor
	if vendor == "" && b.arch == "s390x" {
		vendor = "IBM" // libvirt reports none: there is no other
	}
	b.each(v1.CPUModelVendorLabel, vendor)
	for _, f := range m.Features {
		if b.required(f.Policy) {
			b.add(v1.HostModelRequiredFeaturesLabel, f.Name, "true")
		}
	}
	if len(m.Models) == 0 {
		return
	}
	name := m.Models[0].Name
	b.each(v1.HostModelCPULabel, name)
	if slices.Contains(b.config.Obsolete, name) {
		b.all[v1.NodeHostModelIsObsoleteLabel] = "true"
	} else {
		b.each(v1.SupportedHostModelMigrationCPU, name)
	}
}

// host adds machine types, architectures and the timer.
func (b *labels) host(c *libvirtxml.Caps) {
	if cpu := c.Host.CPU; cpu != nil && cpu.Counter != nil && cpu.Counter.Name == "tsc" {
		b.add(v1.CPUTimerLabel, "tsc-frequency", strconv.FormatUint(uint64(cpu.Counter.Frequency), 10))
		b.add(v1.CPUTimerLabel, "tsc-scalable", strconv.FormatBool(cpu.Counter.Scaling == "yes"))
	}
	for i := range c.Guests {
		arch := &c.Guests[i].Arch
		if name := goArch[arch.Name]; name != "" && b.config.Architectures {
			b.add(v1.VMArchLabel, name, "true")
		}
		if arch.Name != b.arch {
			continue
		}
		for _, m := range machines(arch) {
			b.add(v1.SupportedMachineTypeLabel, m.Name, "true")
		}
	}
}

// machines are those that any domain type of the architecture has.
func machines(arch *libvirtxml.CapsGuestArch) []libvirtxml.CapsGuestMachine {
	all := slices.Clone(arch.Machines)
	for i := range arch.Domains {
		all = append(all, arch.Domains[i].Machines...)
	}
	return all
}

// goArch are the names by which Kubernetes knows libvirt's architectures.
var goArch = map[string]string{"x86_64": "amd64", "aarch64": "arm64", "s390x": "s390x"}

// hyperv are the names by which KubeVirt's labels know libvirt's. KubeVirt asks the kernel; libvirt
// asks QEMU, which asks the kernel. "base" and "time" have no counterparts of their own: KVM has them
// wherever it has relaxed timing and virtual APICs.
var hyperv = map[string][]string{
	"relaxed": {"base"}, "vapic": {"time"}, "vpindex": {"vpindex"}, "runtime": {"runtime"}, "synic": {"synic", "synic2"},
	"stimer": {"synictimer"}, "reset": {"reset"}, "frequencies": {"frequencies"}, "reenlightenment": {"reenlightenment"},
	"tlbflush": {"tlbflush"}, "ipi": {"ipi"},
}

// security adds Hyper-V's features and those that hide a guest's memory from the node.
func (b *labels) security(f *libvirtxml.DomainCapsFeatures) {
	if f == nil {
		return
	}
	if h := f.HyperV; h != nil && h.Supported == "yes" {
		for _, feature := range values(h.Enums, "features") {
			b.each(v1.HypervLabel, hyperv[feature]...)
		}
	}
	mark := func(label string, supported bool) {
		if supported {
			b.all[label] = ""
		}
	}
	if s := f.SEV; s != nil && s.Supported == "yes" {
		mark(v1.SEVLabel, true)
		mark(v1.SEVESLabel, s.MaxESGuests > 0)
	}
	if l := f.LaunchSecurity; l != nil && l.Supported == "yes" {
		mark(v1.SEVSNPLabel, slices.Contains(values(l.Enums, "sectype"), "sev-snp"))
	}
	mark(v1.SecureExecutionLabel, f.S390PV != nil && f.S390PV.Supported == "yes")
	mark(v1.TDXLabel, f.TDX != nil && f.TDX.Supported == "yes")
}

// values returns those of the enum of that name.
func values(enums []libvirtxml.DomainCapsEnum, name string) []string {
	for _, e := range enums {
		if e.Name == name {
			return e.Values
		}
	}
	return nil
}
