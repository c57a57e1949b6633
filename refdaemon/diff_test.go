// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"libvirt.org/go/libvirtxml"

	"github.com/virtloom/virtloom/domain/diff"
)

// TestDiff runs the program itself on what it has converted before.
func TestDiff(t *testing.T) {
	program, dir := build(t), t.TempDir()
	guest := small("", "")
	write := func(name, text string) string {
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		return file
	}
	converted := func(guest string) string {
		out, stderr, _ := runProgram(t, program, guest, []string{"convert", "-f", "-"})
		if stderr != "" {
			t.Fatal(stderr)
		}
		return out
	}
	live := write("live.xml", converted(guest))
	noted := write("noted.xml", stamped(t, converted(guest)))
	emulated := write("emulated.xml", strings.Replace(converted(guest), `type="kvm"`, `type="qemu"`, 1))
	other := write("other.xml", converted(strings.Replace(guest, "name: vm", "name: another", 1)))
	more := small("", ", volumes: [{name: v, persistentVolumeClaim: {claimName: c}}]")
	machine := write("machine.xml", strings.Replace(converted(guest), `machine="q35"`, `machine="pc-q35-7.2"`, 1))
	notXML := write("not.xml", "memory: 1Gi")

	for name, tt := range map[string]struct {
		args  []string
		stdin string // the guest, unless the arguments say otherwise
		code  int
		out   []string // what each line contains, in order
		err   string   // what stderr begins with, or all of it if that ends its line
	}{
		"nothing differs":                           {args: []string{"-f", "-", "--live", live}, stdin: guest},
		"nothing differs from what was noted":       {args: []string{"-f", "-", "--live", noted}, stdin: guest},
		"nothing differs from what was applied":     {args: []string{"-f", "-", "--live", live, "--applied", live}, stdin: guest},
		"emulation is the node's choice":            {args: []string{"-f", "-", "--live", emulated}, stdin: guest},
		"the versioned name of the machine is none": {args: []string{"-f", "-", "--live", machine, "--applied", live}, stdin: guest},
		"a disk to plug in": {
			args: []string{"-f", "-", "--live", live}, stdin: more, code: 3, out: []string{"spec.domain.devices.disks[v]: "},
		},
		"what was applied decides about what the hypervisor rewrites": {
			args: []string{"-f", "-", "--live", live, "--applied", live}, stdin: strings.Replace(guest, "Nehalem", "Westmere", 1), code: 3,
			out: []string{"spec.domain.cpu.model: "},
		},

		"no live domain": {args: []string{"-f", "-"}, code: 2, err: "refdaemon: diff: --live is required: specify a file with the XML of the running domain, or - for standard input; see refdaemon diff -h\n"},
		"stdin twice":    {args: []string{"-f", "-", "--live", "-"}, code: 2, err: "refdaemon: diff: standard input is given twice, but can be read only once; see refdaemon diff -h\n"},
		"format":         {args: []string{"-f", "-", "--live", live, "-o", "xml"}, code: 2, err: "refdaemon: diff: unknown shorthand flag: 'o' in -o; see refdaemon diff -h\n"},
		"absent domain":  {args: []string{"-f", "-", "--live", "absent.xml"}, stdin: guest, code: 1, err: "refdaemon: diff: open absent.xml: no such file or directory; specify a readable file\n"},
		"no XML":         {args: []string{"-f", "-", "--live", notXML}, stdin: guest, code: 1, err: "refdaemon: " + notXML + ": domain: is not the XML of a libvirt domain: "},
		"another domain": {args: []string{"-f", "-", "--live", other}, stdin: guest, code: 1, err: "refdaemon: diff: domain default_vm cannot be compared with default_another: "},
		"no guest":       {args: []string{"-f", "-", "--live", live}, code: 1, err: "refdaemon: VirtualMachineInstance not found; add its manifest with -f\n"},
	} {
		t.Run(name, func(t *testing.T) {
			out, stderr, code := runProgram(t, program, tt.stdin, append([]string{"diff"}, tt.args...))
			if code != tt.code {
				t.Errorf("exit code %d, want %d", code, tt.code)
			}
			whole := tt.err == "" || strings.HasSuffix(tt.err, "\n")
			if whole && stderr != tt.err || !strings.HasPrefix(stderr, tt.err) {
				t.Errorf("stderr\n%swant\n%s", stderr, tt.err)
			}
			lines := strings.SplitAfter(out, "\n")
			lines = lines[:len(lines)-1]
			if len(lines) != len(tt.out) {
				t.Fatalf("%d lines, want %d:\n%s", len(lines), len(tt.out), out)
			}
			for i, want := range tt.out {
				if !strings.Contains(lines[i], want) {
					t.Errorf("line %d has no %q: %s", i+1, want, lines[i])
				}
			}
		})
	}
	t.Run("help", func(t *testing.T) {
		out, stderr, code := runProgram(t, program, "", []string{"diff", "--help"})
		if code != 0 || stderr != "" || !strings.Contains(out, "refdaemon diff -f FILE") || !strings.Contains(out, "-applied") {
			t.Errorf("exit code %d, stderr %s, stdout\n%s", code, stderr, out)
		}
	})
}

// stamped is the domain with the wish it was made from in its metadata.
func stamped(t *testing.T, text string) string {
	t.Helper()
	d := &libvirtxml.Domain{}
	if err := d.Unmarshal(text); err != nil {
		t.Fatal(err)
	}
	if err := diff.Stamp(d); err != nil {
		t.Fatal(err)
	}
	out, err := d.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	return out
}
