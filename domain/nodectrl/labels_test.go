// SPDX-License-Identifier: Apache-2.0

package nodectrl_test

import (
	"encoding/json"
	"flag"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/nodectrl"
)

var update = flag.Bool("update", false, "rewrite the golden labels")

// recorded are the answers of a hypervisor.
func recorded(t *testing.T, dir string) domain.Capabilities {
	t.Helper()
	read := func(name string) string {
		text, err := os.ReadFile(filepath.Join("testdata", dir, name+".xml"))
		must(t, err)
		return string(text)
	}
	return domain.Capabilities{Host: read("host"), Domain: read("domain"), CPU: read("cpu")}
}

func TestLabels_RealNode(t *testing.T) {
	got, err := nodectrl.Labels(nodectrl.Facts{Capabilities: recorded(t, "x86_64")}, nodectrl.LabelConfigOf(nil))
	must(t, err)
	text, err := json.MarshalIndent(got, "", "  ")
	must(t, err)
	golden := filepath.Join("testdata", "x86_64", "labels.json")
	if *update {
		must(t, os.WriteFile(golden, append(text, '\n'), 0o644))
	}
	want, err := os.ReadFile(golden)
	must(t, err)
	if diff := cmp.Diff(string(want), string(text)+"\n"); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	for key := range got {
		if !nodectrl.Owned(key) {
			t.Errorf("%s would never be removed again", key)
		}
	}
}

// facts adds a host and its guest's capabilities around a part of the descriptions.
func facts(arch, host, guest, features string) nodectrl.Facts {
	return nodectrl.Facts{Capabilities: domain.Capabilities{
		Host: "<capabilities>" + host + "</capabilities>",
		Domain: "<domainCapabilities><domain>kvm</domain><arch>" + arch + "</arch><cpu>" + guest + "</cpu><features>" + features +
			"</features></domainCapabilities>",
	}}
}

const models = `<mode name='host-model' supported='yes'><model fallback='forbid'>EPYC</model><vendor>AMD</vendor>
	<feature policy='require' name='aes'/><feature policy='disable' name='monitor'/></mode>
	<mode name='custom' supported='yes'><model usable='yes'>Penryn</model><model usable='no'>EPYC-Rome</model><model usable='yes'>qemu64</model>
	<model usable='yes'>qemu64-v1</model><model usable='unknown'>cortex</model><model usable='yes'>no/label</model></mode>`

func TestLabels(t *testing.T) {
	withCPU := func(f nodectrl.Facts, cpu string) nodectrl.Facts {
		f.CPU = cpu
		return f
	}
	fromModels := map[string]string{
		v1.CPUModelLabel + "Penryn": "true", v1.CPUModelLabel + "cortex": "true", v1.HostModelCPULabel + "EPYC": "true",
		v1.SupportedHostModelMigrationCPU + "Penryn": "true", v1.SupportedHostModelMigrationCPU + "EPYC-Rome": "true",
		v1.SupportedHostModelMigrationCPU + "cortex": "true", v1.SupportedHostModelMigrationCPU + "EPYC": "true",
		v1.CPUModelVendorLabel + "AMD": "true", v1.HostModelRequiredFeaturesLabel + "aes": "true",
	}
	guests := "<guest><arch name='x86_64'><machine canonical='pc-q35-7.2'>q35</machine><machine>pc-q35-7.2</machine><domain type='kvm'><machine>microvm</machine></domain></arch></guest>" +
		"<guest><arch name='aarch64'><machine>virt</machine></arch></guest><guest><arch name='riscv64'><machine>virt</machine></arch></guest>"
	for name, tt := range map[string]struct {
		facts  nodectrl.Facts
		config nodectrl.LabelConfig
		want   map[string]string
	}{
		"models that are usable, known, obsolete": {facts("x86_64", "", models, ""), nodectrl.LabelConfigOf(nil), fromModels},
		"the host's own model is obsolete": {facts("x86_64", "", `<mode name='host-model' supported='yes'><model>EPYC</model></mode>`, ""),
			nodectrl.LabelConfig{Obsolete: []string{"EPYC"}}, map[string]string{v1.HostModelCPULabel + "EPYC": "true", v1.NodeHostModelIsObsoleteLabel: "true"}},
		"modes that are not supported": {facts("x86_64", "", strings.ReplaceAll(models, "supported='yes'", "supported='no'"), ""), nodectrl.LabelConfig{}, nil},
		"arm64 has no models to choose": {withCPU(facts("aarch64", "", models, ""), "<cpu><feature policy='require' name='aes'/></cpu>"),
			nodectrl.LabelConfig{}, nil},
		"s390x has one vendor, and no policies": {
			withCPU(facts("s390x", "", "<mode name='host-model' supported='yes'><model>z15</model><feature name='vx'/></mode>", ""), "<cpu><feature name='vxeh'/></cpu>"),
			nodectrl.LabelConfig{}, map[string]string{
				v1.CPUModelVendorLabel + "IBM": "true", v1.HostModelCPULabel + "z15": "true", v1.SupportedHostModelMigrationCPU + "z15": "true",
				v1.HostModelRequiredFeaturesLabel + "vx": "true", v1.CPUFeatureLabel + "vxeh": "true",
			}},
		"features of the widest CPU": {withCPU(facts("x86_64", "", "", ""), "<cpu><feature policy='require' name='aes'/><feature policy='disable' name='mpx'/><feature name='x'/></cpu>"),
			nodectrl.LabelConfig{}, map[string]string{v1.CPUFeatureLabel + "aes": "true"}},
		"a timer that can be scaled": {facts("x86_64", "<host><cpu><counter name='tsc' frequency='2000000000' scaling='yes'/></cpu></host>", "", ""), nodectrl.LabelConfig{},
			map[string]string{v1.CPUTimerLabel + "tsc-frequency": "2000000000", v1.CPUTimerLabel + "tsc-scalable": "true"}},
		"machine types of the host's architecture": {facts("x86_64", guests, "", ""), nodectrl.LabelConfig{}, map[string]string{
			v1.SupportedMachineTypeLabel + "q35": "true", v1.SupportedMachineTypeLabel + "pc-q35-7.2": "true", v1.SupportedMachineTypeLabel + "microvm": "true",
		}},
		"architectures where they may differ": {facts("s390x", guests, "", ""), nodectrl.LabelConfig{Architectures: true},
			map[string]string{v1.VMArchLabel + "amd64": "true", v1.VMArchLabel + "arm64": "true"}},
		"Hyper-V": {facts("x86_64", "", "", "<hyperv supported='yes'><enum name='features'><value>relaxed</value><value>vapic</value><value>spinlocks</value><value>synic</value><value>stimer</value></enum></hyperv>"),
			nodectrl.LabelConfig{}, map[string]string{v1.HypervLabel + "base": "true", v1.HypervLabel + "time": "true", v1.HypervLabel + "synic": "true",
				v1.HypervLabel + "synic2": "true", v1.HypervLabel + "synictimer": "true"}},
		"memory that is hidden from the node": {facts("x86_64", "", "", `<sev supported='yes'><maxESGuests>15</maxESGuests></sev><tdx supported='yes'/><s390-pv supported='no'/>
			<launchSecurity supported='yes'><enum name='sectype'><value>sev</value><value>sev-snp</value></enum></launchSecurity>`),
			nodectrl.LabelConfig{}, map[string]string{v1.SEVLabel: "", v1.SEVESLabel: "", v1.SEVSNPLabel: "", v1.TDXLabel: ""}},
		"memory that is hidden in part": {facts("x86_64", "", "", `<sev supported='yes'><maxESGuests>0</maxESGuests></sev><s390-pv supported='yes'/>`),
			nodectrl.LabelConfig{}, map[string]string{v1.SEVLabel: "", v1.SecureExecutionLabel: ""}},
		"realtime": {nodectrl.Facts{Capabilities: facts("x86_64", "", "", "").Capabilities, Realtime: true}, nodectrl.LabelConfig{}, map[string]string{v1.RealtimeLabel: ""}},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := nodectrl.Labels(tt.facts, tt.config)
			must(t, err)
			if tt.want == nil {
				tt.want = map[string]string{}
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			for key := range got {
				if !nodectrl.Owned(key) {
					t.Errorf("%s would never be removed again", key)
				}
			}
		})
	}
}

func TestLabels_InvalidDescriptions(t *testing.T) {
	good := facts("x86_64", "", "", "").Capabilities
	for name, tt := range map[string]struct {
		edit func(*domain.Capabilities)
		want string
	}{
		"host":   {func(c *domain.Capabilities) { c.Host = "<capabilities>" }, "the hypervisor's capabilities"},
		"domain": {func(c *domain.Capabilities) { c.Domain = "" }, "the hypervisor's domain capabilities"},
		"cpu":    {func(c *domain.Capabilities) { c.CPU = "<cpu>" }, "the hypervisor CPU baseline"},
	} {
		t.Run(name, func(t *testing.T) {
			c := good
			tt.edit(&c)
			if _, err := nodectrl.Labels(nodectrl.Facts{Capabilities: c}, nodectrl.LabelConfig{}); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, want it to name %s", err, tt.want)
			}
		})
	}
}

func TestObsoleteModels(t *testing.T) {
	of := func(models map[string]bool, gates ...string) *v1.KubeVirt {
		kv := &v1.KubeVirt{}
		kv.Spec.Configuration.ObsoleteCPUModels = models
		kv.Spec.Configuration.DeveloperConfiguration = &v1.DeveloperConfiguration{FeatureGates: gates}
		return kv
	}
	for name, tt := range map[string]struct {
		kv    *v1.KubeVirt
		want  []string // some of them
		not   []string
		archs bool
	}{
		"without a KubeVirt object":   {nil, []string{"486", "kvm64", "kvm64-v1"}, []string{"Penryn"}, false},
		"where the object names none": {of(nil), []string{"486"}, nil, false},
		"where it names an empty set": {of(map[string]bool{}), nil, []string{"486"}, false},
		"where it names some":         {of(map[string]bool{"Penryn": true, "EPYC": false}, "CrossArchitectureVirtualization"), []string{"Penryn"}, []string{"EPYC", "486"}, true},
	} {
		t.Run(name, func(t *testing.T) {
			got := nodectrl.LabelConfigOf(tt.kv)
			for _, m := range tt.want {
				if !slices.Contains(got.Obsolete, m) {
					t.Errorf("%s is missing in %v", m, got.Obsolete)
				}
			}
			for _, m := range tt.not {
				if slices.Contains(got.Obsolete, m) {
					t.Errorf("%s is in %v", m, got.Obsolete)
				}
			}
			if got.Architectures != tt.archs {
				t.Errorf("architectures: %t", got.Architectures)
			}
		})
	}
}

func TestOwned_LabellerKeysOnly(t *testing.T) {
	foreign := map[string]bool{
		v1.NodeSchedulable: true, v1.CPUManager: true, "kubernetes.io/arch": true, "topology.kubernetes.io/zone": true, "kubevirt.io/sevenths": true,
	}
	for key := range maps.Keys(foreign) {
		if nodectrl.Owned(key) {
			t.Errorf("%s is taken for the labeller's", key)
		}
	}
}
