// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"os/exec"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/virtloom/virtloom/domain/convert"
)

// Arguments that name the files of examples/convert.
var (
	guestFile = []string{"-f", "../examples/convert/guest.yaml"}
	factsFile = []string{"--facts", "../examples/convert/facts.yaml"}
)

// smallGuest is a manifest for standard input; SPEC goes into its domain, MORE beside it.
const smallGuest = `{apiVersion: kubevirt.io/v1, kind: VirtualMachineInstance, metadata: {name: vm}, spec: {domain: {
	devices: {autoattachPodInterface: false}, cpu: {model: Nehalem}, memory: {guest: 64Mi} SPEC} MORE}}
---
`

func small(spec, more string) string {
	return strings.NewReplacer("SPEC", spec, "MORE", more).Replace(smallGuest)
}

// TestConvert runs the program itself, built without C.
func TestConvert(t *testing.T) {
	program := build(t)
	both := append(append([]string{}, guestFile...), factsFile...)
	const claim = "{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: c}, spec: {volumeMode: Block}}"
	const onClaim = ", volumes: [{name: v, persistentVolumeClaim: {claimName: c}}]"
	for name, tt := range map[string]struct {
		args  []string
		stdin string
		code  int
		out   []string // what stdout contains; nothing means that it is empty
		lacks string   // what stdout does not contain
		err   string   // what stderr begins with, or all of it if that ends its line
	}{
		"help":               {args: []string{"-h"}, out: []string{"refdaemon convert -f FILE", "-facts", "domain.Facts", "Exit code 1 "}},
		"the example":        {args: both, out: []string{"<domain type=\"kvm\">", "<name>default_web</name>", "bridge=\"br0\"", "guests/5b6c1a2e-0000-4000-8000-000000000001/root.qcow2", "/var/run/kubevirt-private/vmi-disks/data/disk.img"}},
		"XML asked for":      {args: append([]string{"-o", "xml"}, both...), out: []string{"<domain type=\"kvm\">"}},
		"standard input":     {args: []string{"-f", "-"}, stdin: small("", ""), out: []string{"<name>default_vm</name>", "<type arch=\"x86_64\" machine=\"q35\">"}},
		"facts from stdin":   {args: append([]string{"--facts", "-"}, guestFile...), stdin: "bridges: {default: br9}\nemulation: true", out: []string{"<domain type=\"qemu\">", "bridge=\"br9\""}},
		"the cluster's make": {args: []string{"-f", "-"}, stdin: small("", "") + "{apiVersion: kubevirt.io/v1, kind: KubeVirt, metadata: {name: k}, spec: {configuration: {smbios: {family: ours}}}}", out: []string{"<entry name=\"family\">ours</entry>"}},
		"a claim that is a block device": {
			args: []string{"-f", "-"}, stdin: small("", onClaim) + claim, out: []string{"<disk type=\"block\"", "dev=\"/dev/v\""},
		},
		"a claim that is not known":      {args: []string{"-f", "-"}, stdin: small("", onClaim), out: []string{"<disk type=\"file\"", "vmi-disks/v/disk.img"}},
		"without the webhooks' defaults": {args: []string{"-f", "-", "--raw"}, stdin: small("", onClaim), out: []string{"<domain type=\"kvm\">"}, lacks: "<disk"},

		"a VirtualMachine":     {args: machineFile, out: []string{"<name>default_shop</name>", "<topology sockets=\"4\" cores=\"2\" threads=\"1\">", "<memory unit=\"b\">4294967296</memory>", "<source dev=\"/dev/root\">", "bus=\"virtio\""}},
		"without its webhooks": {args: append([]string{"--raw"}, machineFile...), out: []string{"<name>default_shop</name>", "<topology sockets=\"1\" cores=\"2\" threads=\"1\">"}},
		"a VirtualMachine without its instance type": {args: []string{"-f", "-"}, stdin: machine, code: 1,
			err: "refdaemon: standard input: document 1 (line 1): VirtualMachine default/vm: spec.instancetype: VirtualMachineClusterInstancetype it not found; add its manifest with -f, or correct spec.instancetype\n"},

		"no file":        {code: 2, err: "refdaemon: convert: -f is required: specify a file of manifests, or - for standard input; see refdaemon convert -h\n"},
		"unknown format": {args: []string{"-f", "-", "-o", "json"}, code: 2, err: "refdaemon: convert: -o json is unknown; use xml; see refdaemon convert -h\n"},
		"surplus":        {args: []string{"-f", "-", "surplus"}, code: 2, err: "refdaemon: convert: unexpected argument \"surplus\"; see refdaemon convert -h\n"},
		"stdin twice":    {args: []string{"-f", "-", "--facts", "-"}, code: 2, err: "refdaemon: convert: standard input is given twice, but can be read only once; see refdaemon convert -h\n"},
		"flag of diff":   {args: []string{"-f", "-", "--live", "x"}, code: 2, err: "refdaemon: convert: unknown flag: --live; see refdaemon convert -h\n"},

		"empty input":  {args: []string{"-f", "-"}, code: 1, err: "refdaemon: VirtualMachineInstance not found; add its manifest with -f\n"},
		"absent file":  {args: []string{"-f", "absent.yaml"}, code: 1, err: "refdaemon: convert: open absent.yaml: no such file or directory; specify a readable file\n"},
		"absent facts": {args: append([]string{"--facts", "absent.yaml"}, guestFile...), code: 1, err: "refdaemon: convert: open absent.yaml: no such file or directory; specify a readable file\n"},
		"unknown field": {
			args: []string{"-f", "-"}, stdin: strings.Replace(small("", ""), "cpu:", "cpus:", 1), code: 1,
			err: "refdaemon: standard input: document 1 (line 1): VirtualMachineInstance vm: spec.domain.cpus: is not a field of VirtualMachineInstance;",
		},
		"unknown facts, each in its line": {
			args: append([]string{"--facts", "-"}, guestFile...), stdin: "Dir: /a\ndisks: {root: {pth: /b}}", code: 1,
			err: "refdaemon: standard input: facts: Dir: is an unknown or duplicate field; correct its name (names are case-sensitive) or its place, or remove it\n" +
				"refdaemon: standard input: facts: disks.root.pth: is an unknown or duplicate field; correct its name (names are case-sensitive) or its place, or remove it\n",
		},
		"a fact of another type": {args: append([]string{"--facts", "-"}, guestFile...), stdin: "epoch: many", code: 1, err: "refdaemon: standard input: facts: epoch: is a string, which cannot be decoded into uint64; correct the value\n"},
		"facts that are no YAML": {args: append([]string{"--facts", "-"}, guestFile...), stdin: "a: [", code: 1, err: "refdaemon: standard input: facts: is neither YAML nor JSON: "},
		"impossible guest": {
			args: []string{"-f", "-"}, stdin: small(", clock: {timer: {rtc: {tickPolicy: sometimes}}}", ""), code: 1,
			err: "refdaemon: VirtualMachineInstance default/vm: spec.domain.clock.timer.rtc.tickPolicy: ",
		},
		"a node that lacks something": {
			args: append([]string{"--facts", "-"}, guestFile...), stdin: "disks: {root: {path: relative}}", code: 1,
			err: "refdaemon: VirtualMachineInstance default/web: spec.volumes[root]: ",
		},
	} {
		t.Run(name, func(t *testing.T) {
			out, stderr, code := runProgram(t, program, tt.stdin, append([]string{"convert"}, tt.args...))
			if code != tt.code {
				t.Errorf("exit code %d, want %d", code, tt.code)
			}
			whole := tt.err == "" && tt.code == 0 || strings.HasSuffix(tt.err, "\n")
			if whole && stderr != tt.err || !strings.HasPrefix(stderr, tt.err) {
				t.Errorf("stderr\n%swant\n%s", stderr, tt.err)
			}
			for _, want := range tt.out {
				if !strings.Contains(out, want) {
					t.Errorf("stdout has no %q:\n%s", want, out)
				}
			}
			if tt.lacks != "" && strings.Contains(out, tt.lacks) {
				t.Errorf("stdout has %q:\n%s", tt.lacks, out)
			}
			if len(tt.out) == 0 && out != "" {
				t.Errorf("stdout beside an error:\n%s", out)
			}
		})
	}
	t.Run("what is printed is what Convert returns", func(t *testing.T) {
		out, _, _ := runProgram(t, program, "", append([]string{"convert"}, both...))
		o := &guestOptions{command: "convert", manifests: manifests{files: words{guestFile[1]}}, facts: factsFile[1]}
		g, err := o.guest(nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		want, err := convert.Convert(g.vmi.VMI, g.facts)
		if err != nil {
			t.Fatal(err)
		}
		text, err := want.Marshal()
		if diff := cmp.Diff(text+"\n", out); diff != "" || err != nil {
			t.Errorf("%v: -Convert +printed\n%s", err, diff)
		}
	})
}

// runProgram runs the program and returns what it wrote and its exit code.
func runProgram(t *testing.T, program, stdin string, args []string) (out, stderr string, code int) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), program, args...)
	var stdout, errs bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &stdout, &errs
	code = exitCode(t, cmd.Run())
	return stdout.String(), errs.String(), code
}
