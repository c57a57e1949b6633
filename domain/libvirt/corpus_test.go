// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package libvirt_test

import (
	"bytes"
	"errors"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	golibvirt "libvirt.org/go/libvirt"
	"libvirt.org/go/libvirtxml"

	"github.com/virtloom/virtloom/domain/convert"
	"github.com/virtloom/virtloom/domain/convert/assume"
	"github.com/virtloom/virtloom/domain/diff"
	"github.com/virtloom/virtloom/internal/refguest"
	"github.com/virtloom/virtloom/internal/rig"
	"github.com/virtloom/virtloom/internal/rig/rigtest"
)

// schema is libvirt's definition of domains, which virt-xml-validate uses.
const schema = "/usr/share/libvirt/schemas/domain.rng"

// tooNew is a VMI of the corpus with features that libvirt 9.0, QEMU 7.2 or this machine does not
// support. Their errors have to contain the texts; empty means that they accept it.
type tooNew struct {
	why            string
	schema, define string
}

// The errors of libvirt's schema for an unknown element, by its parent.
const (
	unknownDevice  = "element devices: Relax-NG validity error"
	unknownFeature = "element features: Relax-NG validity error"
	unknownProtect = "element launchSecurity: Relax-NG validity error"
	unknownTable   = "element type: Relax-NG validity error"
)

var tooNewGuests = map[string]tooNew{
	"bios":            {why: "two ACPI tables, libvirt 11.2", schema: unknownTable, define: "Only one acpi table is supported"},
	"changed-blocks":  {why: "<dataStore>, libvirt 10.10", schema: unknownDevice},
	"cpu-model":       {why: "a machine type of Red Hat's QEMU", define: "does not support machine type 'pc-q35-rhel9.6.0'"},
	"disk-tuning":     {why: "discard_granularity, libvirt 10.2", schema: unknownDevice},
	"io-threads":      {why: "several I/O threads for a disk, libvirt 10.0", schema: unknownDevice},
	"lun-reservation": {why: "reservations that migrate, libvirt 11.6", schema: unknownDevice},
	"passt":           {why: "passt by vhost-user, libvirt 11.1", schema: unknownDevice, define: "Missing required attribute 'type' in element 'source'"},
	"peripherals":     {why: "panic device pvpanic, libvirt 9.1", schema: unknownDevice, define: "unknown panic model 'pvpanic'"},
	"sev":             {why: "a QEMU with SEV on a host that has it", define: "SEV launch security is not supported"},
	"sev-es":          {why: "a QEMU with SEV on a host that has it", define: "SEV launch security is not supported"},
	"sev-snp":         {why: "SEV-SNP, libvirt 10.5", schema: unknownProtect, define: "'sev-snp'"},
	"tdx":             {why: "TDX, libvirt 11.7", schema: unknownProtect, define: "'tdx'"},
	"windows":         {why: "direct and extended tlbflush, libvirt 11.0", schema: unknownFeature},
}

// onlyKVM are the VMIs of the corpus that cannot be emulated, and the errors of conversion.
var onlyKVM = map[string]string{
	"arm64": "host-passthrough requires KVM", "cross-architecture": "host-passthrough requires KVM", "realtime": "host-passthrough requires KVM",
	"hyperv-strict": "features.hyperv: Forbidden: requires KVM", "hyperv-passthrough": "features.hypervPassthrough: Forbidden: requires KVM", "windows": "features.hyperv: Forbidden: requires KVM",
	"sev": "launchSecurity: Forbidden: requires KVM", "sev-es": "launchSecurity: Forbidden: requires KVM", "sev-snp": "launchSecurity: Forbidden: requires KVM", "tdx": "launchSecurity: Forbidden: requires KVM",
}

// converted is a VMI of the corpus as a domain.
type converted struct {
	guest  string
	domain *libvirtxml.Domain
	xml    string
}

// corpusDomains converts the corpus, each VMI for KVM and for emulation, by the name of the case.
func corpusDomains(t *testing.T) map[string]converted {
	t.Helper()
	guests, err := refguest.Corpus()
	if err != nil || len(guests) < 90 {
		t.Fatalf("%d guests in the corpus, %v", len(guests), err)
	}
	out := map[string]converted{}
	delete(guests, "bare") // a guest without memory has no domain
	for name, vmi := range guests {
		for accelerator, emulation := range map[string]bool{"kvm": false, "qemu": true} {
			f := assume.Facts(vmi)
			f.Emulation = emulation
			d, err := convert.Convert(vmi, f)
			if refused := onlyKVM[name]; emulation && refused != "" {
				if err == nil || !strings.Contains(err.Error(), refused) {
					t.Errorf("%s/%s: error %v, want %s", name, accelerator, err, refused)
				}
				continue
			}
			if err != nil {
				t.Errorf("%s/%s: %v", name, accelerator, err)
				continue
			}
			onThisMachine(d)
			text, err := d.Marshal()
			if err != nil {
				t.Fatal(err)
			}
			out[name+"/"+accelerator] = converted{guest: name, domain: d, xml: text}
		}
	}
	return out
}

// onThisMachine makes this machine's emulator accept a domain for KVM of another architecture.
func onThisMachine(d *libvirtxml.Domain) {
	if d.OS.Type.Arch == "x86_64" || d.Type != "kvm" {
		return
	}
	d.Type = "qemu"
	if d.CPU != nil && d.CPU.Mode == "host-passthrough" {
		d.CPU.Mode = "maximum"
	}
}

// TestCorpus_Accepted checks every converted VMI of the corpus against libvirt's schema and a real
// libvirt: it accepts the definition, and the stored one does not differ from the desired one.
func TestCorpus_Accepted(t *testing.T) {
	rigtest.Need(t)
	domains := corpusDomains(t)
	invalid := validate(t, domains)
	conn := corpusNode(t)
	refused := map[string]bool{}
	for _, name := range slices.Sorted(maps.Keys(domains)) {
		t.Run(name, func(t *testing.T) {
			c := domains[name]
			x := tooNewGuests[c.guest]
			says(t, "the schema", invalid[name], x.schema)
			readback, err := define(conn, c.xml)
			if err != nil {
				refused[c.guest] = true
				says(t, "define", err.Error(), x.define)
				return
			}
			for what, last := range map[string]*libvirtxml.Domain{"known": c.domain, "not known": nil} {
				found, err := diff.Compare(c.domain, last, readback)
				if err != nil {
					t.Fatal(err)
				}
				for _, difference := range found {
					t.Errorf("what was applied is %s: %s", what, difference)
				}
			}
		})
	}
	for name, x := range tooNewGuests {
		schemaFails := invalid[name+"/kvm"] != "" || invalid[name+"/qemu"] != ""
		if x.why == "" || schemaFails != (x.schema != "") || refused[name] != (x.define != "") {
			t.Errorf("%s: the exception does not hold (schema: %v, define: %v): %+v", name, schemaFails, refused[name], x)
		}
	}
}

func says(t *testing.T, who, got, want string) {
	t.Helper()
	switch {
	case got == "":
	case want == "":
		t.Errorf("%s: %s", who, got)
	case !strings.Contains(got, want):
		t.Errorf("%s says %q, and is expected to say %q", who, got, want)
	}
}

// corpusNode is a connection to the libvirt of a node that has emulators for all architectures.
func corpusNode(t *testing.T) *golibvirt.Connect {
	t.Helper()
	f, err := rig.NewFabric(t.Context(), rig.FabricOptions{Log: t.Logf, Emulators: true})
	if err != nil {
		t.Fatalf("%v: run make setup", err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			f.Keep()
		}
		if err := f.Stop(contextWithoutEnd(t)); err != nil {
			t.Error(err)
		}
	})
	n, err := f.AddNode(t.Context(), "corpus")
	if err != nil {
		t.Fatal(err)
	}
	conn, err := golibvirt.NewConnect(n.URI())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if _, err := conn.Close(); err != nil {
			t.Error(err)
		}
	})
	return conn
}

// define defines a domain, reads it back and undefines it.
func define(conn *golibvirt.Connect, xml string) (*libvirtxml.Domain, error) {
	d, err := conn.DomainDefineXML(xml)
	if err != nil {
		return nil, err
	}
	text, err := d.GetXMLDesc(golibvirt.DOMAIN_XML_INACTIVE | golibvirt.DOMAIN_XML_SECURE)
	err = errors.Join(err, d.UndefineFlags(golibvirt.DOMAIN_UNDEFINE_KEEP_NVRAM), d.Free())
	if err != nil {
		return nil, err
	}
	readback := &libvirtxml.Domain{}
	return readback, readback.Unmarshal(text)
}

// validate validates all domains in one run and returns the errors by the names of the cases.
func validate(t *testing.T, domains map[string]converted) map[string]string {
	t.Helper()
	dir := t.TempDir()
	args := []string{"--noout", "--relaxng", schema}
	files := map[string]string{}
	for name, c := range domains {
		file := filepath.Join(dir, strings.ReplaceAll(name, "/", "-")+".xml")
		if err := os.WriteFile(file, []byte(c.xml), 0o644); err != nil {
			t.Fatal(err)
		}
		args, files[file] = append(args, file), name
	}
	out, err := exec.CommandContext(t.Context(), "xmllint", args...).CombinedOutput()
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		t.Fatalf("%v: run make setup", err)
	}
	verdicts, invalid := 0, map[string]string{}
	for line := range bytes.Lines(out) {
		text := strings.TrimSpace(string(line))
		for file, name := range files {
			switch {
			case text == file+" validates":
				verdicts++
			case text == file+" fails to validate":
				verdicts++
				invalid[name] += text
			case strings.HasPrefix(text, file+":"):
				invalid[name] += strings.TrimPrefix(text, file+":") + "\n"
			}
		}
	}
	if verdicts != len(files) {
		t.Fatalf("%d verdicts about %d domains: %s", verdicts, len(files), out)
	}
	return invalid
}
