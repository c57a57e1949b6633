// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/virtloom/virtloom/refdaemon/configfile"
)

// Manifests that are written to standard input.
const (
	bareGuest = "{apiVersion: kubevirt.io/v1, kind: VirtualMachineInstance, metadata: {name: vm}, spec: {domain: {devices: {}}}}\n"

	moving = `{apiVersion: v1, kind: List, items: [
	{apiVersion: kubevirt.io/v1, kind: VirtualMachineInstanceMigration, metadata: {name: move}, spec: {vmiName: web, addedNodeSelector: {zone: b}}},
	{apiVersion: v1, kind: Pod, metadata: {name: source, uid: p-1, labels: {kubevirt.io: virt-launcher}, annotations: {kubevirt.io/domain: web}},
		spec: {nodeName: n1, containers: []}, status: {initContainerStatuses: [{name: volumeroot, image: debian, ready: true, restartCount: 0, imageID: 'x@sha256:0123'}]}},
	{apiVersion: v1, kind: Node, metadata: {name: n1, labels: {host-model-cpu.node.kubevirt.io/Skylake: "true"}}}]}
---
{apiVersion: kubevirt.io/v1, kind: KubeVirt, metadata: {name: kubevirt}, spec: {configuration: {migrations: {matchSELinuxLevelOnMigration: false}}}}
`
	plugging = `{apiVersion: kubevirt.io/v1, kind: VirtualMachineInstance, metadata: {name: vm, uid: u-1}, spec: {domain: {devices: {}},
	volumes: [{name: a, persistentVolumeClaim: {claimName: a, hotpluggable: true}}, {name: b, persistentVolumeClaim: {claimName: b, hotpluggable: true}}]},
	status: {phase: Running, selinuxContext: none}}
---
{apiVersion: v1, kind: Pod, metadata: {name: launcher, uid: p-1, labels: {kubevirt.io/created-by: u-1}}, spec: {nodeName: n1, containers: []}}
---
{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: a}, spec: {volumeMode: Block}}
---
{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: b}}
`
	exporting = "{apiVersion: export.kubevirt.io/v1beta1, kind: VirtualMachineExport, metadata: {name: e}, spec: {source: {apiGroup: '', kind: PersistentVolumeClaim, name: c}}}\n"
)

// hooked is a guest with a hook sidecar whose script is in a ConfigMap, and which names no image.
const hooked = `{apiVersion: kubevirt.io/v1, kind: VirtualMachineInstance, metadata: {name: vm, annotations:
	{hooks.kubevirt.io/hookSidecars: '[{"args": ["--version", "v1alpha2"], "configMap": {"name": "script", "key": "a.sh", "hookPath": "/usr/bin/onDefineDomain"}}]'}},
	spec: {domain: {devices: {}, memory: {guest: 1Gi}}}}
---
{apiVersion: v1, kind: ConfigMap, metadata: {name: script}, data: {a.sh: x}}
---
{apiVersion: kubevirt.io/v1, kind: KubeVirt, metadata: {name: kubevirt}, spec: {configuration: {developerConfiguration: {featureGates: [Sidecar]}}}}
`

// machine is a VirtualMachine with an instance type that no manifest has.
const machine = "{apiVersion: kubevirt.io/v1, kind: VirtualMachine, metadata: {name: vm}, spec: {runStrategy: Always, instancetype: {name: it}, template: {spec: {domain: {devices: {}}}}}}\n"

// machineFile are the arguments that name a VirtualMachine with instance type and preference.
var machineFile = []string{"-f", "../examples/render/machine.yaml"}

// example are the arguments that name all manifests of examples/render.
var example = []string{"-f", "../examples/render/guest.yaml", "-f", "../examples/render/claim.yaml", "-f", "../examples/render/kubevirt.yaml"}

// TestRender runs the program itself, built without C.
func TestRender(t *testing.T) {
	program := build(t)
	for name, tt := range map[string]struct {
		args  []string // "example" stands for the manifests of examples/render, "machine" for those of its VirtualMachine
		stdin string
		code  int
		out   []string // what stdout contains; nothing means that it is empty
		err   string   // what stderr begins with, or all of it if that ends its line
	}{
		"help":                                   {args: []string{"-h"}, out: []string{"refdaemon render KIND -f FILE", "  launcher ", "  exporter ", "-explain-resources", "Exit code 1 "}},
		"YAML":                                   {args: []string{"launcher", "example"}, out: []string{"apiVersion: v1\nkind: Pod\n", "name: virt-launcher-web-", "image: quay.io/kubevirt/virt-launcher:v1.9.0\n", "memory: 8504Mi"}},
		"sidecar shim beside the launcher":       {args: []string{"launcher", "-f", "-", "--image", "registry:5000/x/virt-launcher:v2"}, stdin: hooked, out: []string{"image: registry:5000/x/sidecar-shim:v2\n"}},
		"sidecar shim of KubeVirt's registry":    {args: []string{"launcher", "-f", "-", "--image", "mine"}, stdin: strings.Replace(hooked, "spec: {configuration:", "spec: {imageRegistry: reg, imageTag: t, configuration:", 1), out: []string{"image: reg/sidecar-shim:t\n"}},
		"sidecar shim asked for":                 {args: []string{"launcher", "-f", "-", "--image", "a/virt-launcher:v2", "--sidecar-shim-image", "b/shim"}, stdin: hooked, out: []string{"image: b/shim\n"}},
		"YAML asked for":                         {args: []string{"launcher", "example", "-o", "yaml"}, out: []string{"apiVersion: v1\nkind: Pod\n"}},
		"JSON":                                   {args: []string{"-o", "json", "launcher", "example"}, out: []string{"{\n  \"kind\": \"Pod\",\n", `"quay.io/kubevirt/virt-launcher:v1.9.0"`}},
		"temporary":                              {args: []string{"temporary", "example"}, out: []string{"kubevirt.io/ephemeral-provisioning: \"true\"\n"}},
		"standard input":                         {args: []string{"launcher", "-f", "-", "--image", "mine"}, stdin: bareGuest, out: []string{"image: mine\n", "runAsUser: 107\n", "kubernetes.io/arch: amd64\n"}},
		"raw":                                    {args: []string{"launcher", "-f", "-", "--image", "mine", "--raw"}, stdin: bareGuest, out: []string{"runAsUser: 107\n"}},
		"no image":                               {args: []string{"launcher", "-f", "-"}, stdin: bareGuest, out: []string{"image: " + configfile.DefaultLauncherImage + "\n"}},
		"flags of one dash, and before the kind": {args: []string{"-raw", "-image", "mine", "-f", "-", "launcher"}, stdin: bareGuest, out: []string{"runAsUser: 107\n"}},

		"a VirtualMachine": {args: []string{"launcher", "machine"}, out: []string{"name: virt-launcher-shop-", "app: shop\n", "memory: 4392Mi", "claimName: shop-root\n", "devicePath: /dev/root\n"}},
		"a VirtualMachine and its instance type in two files": {args: []string{"launcher", "-f", "-", "-f", "../examples/render/machine.yaml"}, stdin: machine, code: 1,
			err: "refdaemon: ../examples/render/machine.yaml: document 1 (line 2): VirtualMachine default/shop: kind: is a second VirtualMachine in addition to VirtualMachine default/vm of standard input: document 1 (line 1); render with one at a time\n"},
		"a VirtualMachine without its instance type": {args: []string{"launcher", "-f", "-"}, stdin: machine, code: 1,
			err: "refdaemon: standard input: document 1 (line 1): VirtualMachine default/vm: spec.instancetype: VirtualMachineClusterInstancetype it not found; add its manifest with -f, or correct spec.instancetype\n"},
		"a VirtualMachine with an impossible guest": {args: []string{"launcher", "-f", "-"}, stdin: strings.NewReplacer("instancetype: {name: it}, ", "", "spec: {domain", "spec: {hostname: A_B, domain").Replace(machine), code: 1,
			err: "refdaemon: render VirtualMachineInstance default/vm: stage validate: spec.hostname: \"A_B\": "},
		"a VirtualMachine with a misspelled field": {args: []string{"launcher", "-f", "-"}, stdin: strings.Replace(machine, "domain", "domian", 1), code: 1,
			err: "refdaemon: standard input: document 1 (line 1): VirtualMachine vm: spec.template.spec.domian: is not a field of VirtualMachine; correct its name (case-sensitive) or its position, or remove it\n"},
		"explain a value of an instance type": {args: []string{"launcher", "machine", "--explain", "spec.containers[compute].resources.requests[memory]"}, out: []string{"= \"4392Mi\"\n  stage resources, from spec.domain.memory.guest\n",
			"\n  spec.domain.memory.guest: instance type VirtualMachineInstancetype default/medium\n  spec.domain.cpu: instance type VirtualMachineInstancetype default/medium (cores, sockets, threads); a default of new VirtualMachineInstances (maxSockets, model)\n"}},
		"explain a value of the template": {args: []string{"launcher", "machine", "--explain", "spec.volumes[root]"}, out: []string{"\n  stage volumes, from spec.volumes[0]\n  spec.volumes[0]: the template of VirtualMachine default/shop\n"}},

		"no kind":              {code: 2, err: "refdaemon: render: specify one kind of Pod, of launcher, temporary, migration, hotplug, trigger, exporter; got 0; see refdaemon render -h\n"},
		"two kinds":            {args: []string{"launcher", "-f", "-", "hotplug"}, code: 2, err: "refdaemon: render: specify one kind of Pod, of launcher, temporary, migration, hotplug, trigger, exporter; got 2; see refdaemon render -h\n"},
		"unknown kind":         {args: []string{"pod", "-f", "-"}, code: 2, err: "refdaemon: render: \"pod\" is not a kind of Pod; use one of launcher, temporary, migration, hotplug, trigger, exporter; see refdaemon render -h\n"},
		"unknown flag":         {args: []string{"launcher", "--nonsense"}, code: 2, err: "refdaemon: render: unknown flag: --nonsense; see refdaemon render -h\n"},
		"flag no value":        {args: []string{"launcher", "-f"}, code: 2, err: "refdaemon: render: flag needs an argument: 'f' in -f; see refdaemon render -h\n"},
		"no file":              {args: []string{"launcher"}, code: 2, err: "refdaemon: render: -f is required: specify a file of manifests, or - for standard input; see refdaemon render -h\n"},
		"stdin twice":          {args: []string{"launcher", "-f", "-", "-f", "-"}, code: 2, err: "refdaemon: render: -f - is given twice, but standard input can be read only once; see refdaemon render -h\n"},
		"unknown format":       {args: []string{"launcher", "-f", "-", "-o", "xml"}, code: 2, err: "refdaemon: render: -o xml is unknown; use yaml or json; see refdaemon render -h\n"},
		"both explain":         {args: []string{"launcher", "-f", "-", "--explain", "spec", "--explain-resources"}, code: 2, err: "refdaemon: render: --explain and --explain-resources exclude each other; see refdaemon render -h\n"},
		"explain nothing":      {args: []string{"launcher", "-f", "-", "--explain", ""}, code: 2, err: "refdaemon: render: invalid argument \"\" for \"--explain\" flag: must not be empty; use the path of a field, or a dot for the whole Pod; see refdaemon render -h\n"},
		"explain as JSON":      {args: []string{"launcher", "-f", "-", "--explain", "spec", "-o", "json"}, code: 2, err: "refdaemon: render: -o is the format of a Pod, which --explain and --explain-resources do not print; see refdaemon render -h\n"},
		"volume of a launcher": {args: []string{"launcher", "-f", "-", "--volume", "a"}, code: 2, err: "refdaemon: render: --volume is for hotplug and trigger; see refdaemon render -h\n"},

		"absent file":  {args: []string{"launcher", "-f", "absent.yaml"}, code: 1, err: "refdaemon: render: open absent.yaml: no such file or directory; specify a readable file\n"},
		"a folder":     {args: []string{"launcher", "-f", "../examples"}, code: 1, err: "refdaemon: ../examples: cannot be read: read ../examples: is a directory; use a readable file with manifests\n"},
		"empty input":  {args: []string{"launcher", "-f", "-"}, code: 1, err: "refdaemon: VirtualMachineInstance not found; add its manifest with -f\n"},
		"no claim":     {args: []string{"launcher", "-f", "../examples/render/guest.yaml", "--image", "mine"}, code: 1, err: "refdaemon: render VirtualMachineInstance default/web: stage volumes: spec.volumes[1].persistentVolumeClaim.claimName: claim \"web-data\" not found (missing fact); create the PersistentVolumeClaim in the namespace of the VMI\n"},
		"object twice": {args: []string{"launcher", "example", "-f", "-"}, stdin: "{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: web-data}}", code: 1, err: "refdaemon: standard input: document 1 (line 1): PersistentVolumeClaim default/web-data: metadata.name: is a duplicate of ../examples/render/claim.yaml: document 1 (line 2); keep one of them\n"},
		"every fault is reported, each in its line": {
			args: []string{"launcher", "-f", "-", "-f", "absent.yaml"}, stdin: "a: 1\n---\n" + strings.Replace(bareGuest, "devices", "device", 1), code: 1,
			err: "refdaemon: standard input: document 1 (line 1): object: kind: must be set; set the kind of the object, such as VirtualMachineInstance\n" +
				"refdaemon: standard input: document 2 (line 3): VirtualMachineInstance vm: spec.domain.device: is not a field of VirtualMachineInstance; correct its name (case-sensitive) or its position, or remove it\n" +
				"refdaemon: render: open absent.yaml: no such file or directory; specify a readable file\n",
		},
		"impossible guest": {
			args: []string{"launcher", "-f", "-", "--image", "mine"}, stdin: strings.Replace(bareGuest, "spec: {", "spec: {hostname: A_B, ", 1), code: 1,
			err: "refdaemon: render VirtualMachineInstance default/vm: stage validate: spec.hostname: \"A_B\": a lowercase RFC 1123 label must consist of",
		},
		"guest that the webhooks refuse": {
			args: []string{"launcher", "-f", "-", "--image", "mine"}, code: 1,
			stdin: bareGuest + "---\n{apiVersion: kubevirt.io/v1, kind: KubeVirt, metadata: {name: k}, spec: {configuration: {network: {defaultNetworkInterface: slirp}}}}",
			err:   "refdaemon: KubeVirt default/k: spec.configuration.network.defaultNetworkInterface: \"slirp\" must be bridge or masquerade; set defaultNetworkInterface to masquerade, or add a network and an interface to the VMI\n",
		},
		"migration without one":  {args: []string{"migration", "example"}, code: 1, err: "refdaemon: VirtualMachineInstance default/web: unfinished VirtualMachineInstanceMigration with spec.vmiName web not found; add its manifest with -f\n"},
		"exporter without one":   {args: []string{"exporter", "example"}, code: 1, err: "refdaemon: VirtualMachineExport not found; add its manifest with -f\n"},
		"trigger of two volumes": {args: []string{"trigger", "-f", "-", "--image", "mine"}, stdin: plugging, code: 1, err: "refdaemon: standard input: document 1 (line 1): VirtualMachineInstance default/vm: spec.volumes: more than one volume is hotplugged, but a trigger takes one; select one with --volume\n"},

		"migration": {
			args: []string{"migration", "-f", "../examples/render/guest.yaml", "-f", "../examples/render/claim.yaml", "-f", "-", "--image", "mine"}, stdin: moving,
			out: []string{"kubevirt.io/migrationJobName: move\n", "zone: b\n", "reference: quay.io/containerdisks/debian@sha256:0123\n", "cpu-model-migration.node.kubevirt.io/Skylake: \"true\"\n"},
		},
		"hotplug of all volumes": {args: []string{"hotplug", "-f", "-", "--image", "mine"}, stdin: plugging, out: []string{"claimName: a\n", "claimName: b\n", "name: launcher\n", "- n1\n"}},
		"hotplug of one volume":  {args: []string{"hotplug", "-f", "-", "--image", "mine", "--volume", "b"}, stdin: plugging, out: []string{"claimName: b\n"}},
		"trigger":                {args: []string{"trigger", "-f", "-", "--image", "mine", "--volume", "a"}, stdin: plugging, out: []string{"claimName: a\n", "devicePath: /dev/hotplugblockdevice\n"}},
		"exporter":               {args: []string{"exporter", "-f", "-", "--exporter-image", "mine"}, stdin: exporting, out: []string{"name: virt-export-e\n", "image: mine\n", "kind: VirtualMachineExport\n"}},

		"explain a field":           {args: []string{"launcher", "example", "--explain", ".spec.containers[0].image"}, out: []string{"spec.containers[compute].image = \"quay.io/kubevirt/virt-launcher:v1.9.0\"\n  stage compute, from Config.LauncherImage"}},
		"explain a volume":          {args: []string{"launcher", "example", "--explain", "spec.volumes[data]"}, out: []string{"spec.volumes[data] = {\"name\":\"data\",\"persistentVolumeClaim\":{\"claimName\":\"web-data\"}}\n  stage volumes, from spec.volumes[1]"}},
		"explain the whole Pod":     {args: []string{"launcher", "example", "--explain", "."}, out: []string{"metadata.name = \"virt-launcher-web-", "spec.restartPolicy = \"Never\"\n  stage pod\n", "spec.containers[compute] = \"compute\"\n"}},
		"explain what is not there": {args: []string{"launcher", "example", "--explain", "spec.runtimeClassName"}, code: 1, err: "refdaemon: render Pod default/virt-launcher-web-7ggmepwd4m: stage explain: spec.runtimeClassName: was not set by any stage (invalid); use the path of the containing field\n"},
		"explain resources": {args: []string{"launcher", "example", "--explain-resources"}, out: []string{
			"CONTAINER          RESOURCE                              AMOUNT   TERM ", "compute            requests.cpu                          500m\n",
			"compute            requests.memory                       8504Mi\n                                                           8Gi    guest memory                         spec.domain.memory.guest\n",
			"\n                                                           25Mi   virt-launcher-monitor\n", "compute            limits.devices.kubevirt.io/vhost-net  1", "guest-console-log  limits.memory                         60M",
		}},
	} {
		t.Run(name, func(t *testing.T) {
			out, stderr, code := execute(t, program, tt.stdin, tt.args)
			if code != tt.code {
				t.Errorf("exit code %d, want %d", code, tt.code)
			}
			whole := tt.err == "" || strings.HasSuffix(tt.err, "\n")
			if whole && stderr != tt.err || !strings.HasPrefix(stderr, tt.err) {
				t.Errorf("stderr\n%swant\n%s", stderr, tt.err)
			}
			for _, want := range tt.out {
				if !strings.Contains(out, want) {
					t.Errorf("stdout has no %q:\n%s", want, out)
				}
			}
			if len(tt.out) == 0 && out != "" {
				t.Errorf("stdout beside an error:\n%s", out)
			}
		})
	}
	t.Run("YAML and JSON are the same Pod", func(t *testing.T) {
		var fromYAML, fromJSON corev1.Pod
		text, _, _ := execute(t, program, "", []string{"launcher", "example"})
		if err := yaml.UnmarshalStrict([]byte(text), &fromYAML); err != nil {
			t.Fatal(err)
		}
		text, _, _ = execute(t, program, "", []string{"launcher", "example", "-o", "json"})
		if err := json.Unmarshal([]byte(text), &fromJSON); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(fromYAML, fromJSON); diff != "" {
			t.Error(diff)
		}
	})
	t.Run("lines of amounts end without blanks", func(t *testing.T) {
		text, _, _ := execute(t, program, "", []string{"launcher", "example", "--explain-resources"})
		for line := range strings.Lines(text) {
			if line = strings.TrimSuffix(line, "\n"); line != strings.TrimRight(line, " ") {
				t.Errorf("line %q", line)
			}
		}
	})
	t.Run("wrong arguments of other commands", func(t *testing.T) {
		for _, args := range [][]string{{"nonsense"}, {"controller", "--nonsense"}, {"controller", "surplus"}, {"node"}} {
			if err := exec.CommandContext(t.Context(), program, args...).Run(); exitCode(t, err) != 2 {
				t.Errorf("%v: error %v, want exit code 2", args, err)
			}
		}
	})
}

// builtProgram builds this program, once, with the flags of all else, so that nothing is compiled once more.
var builtProgram = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "refdaemon-test")
	if err != nil {
		return "", err
	}
	leftovers = append(leftovers, dir)
	program := filepath.Join(dir, "refdaemon")
	if out, err := exec.Command("go", "build", "-ldflags=-s -w", "-tags", "libvirt_dlopen", "-o", program, ".").CombinedOutput(); err != nil {
		return "", fmt.Errorf("%w: %s", err, out)
	}
	return program, nil
})

// build returns the program.
func build(t *testing.T) string {
	t.Helper()
	program, err := builtProgram()
	if err != nil {
		t.Fatal(err)
	}
	return program
}

func execute(t *testing.T, program, stdin string, args []string) (out, stderr string, code int) {
	t.Helper()
	all := []string{"render"}
	for _, arg := range args {
		switch arg {
		case "example":
			all = append(all, example...)
		case "machine":
			all = append(all, machineFile...)
		default:
			all = append(all, arg)
		}
	}
	return runProgram(t, program, stdin, all)
}

func exitCode(t *testing.T, err error) int {
	t.Helper()
	var exit *exec.ExitError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &exit):
		return exit.ExitCode()
	}
	t.Fatal(err)
	return 0
}
