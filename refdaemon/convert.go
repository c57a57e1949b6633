// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"
	"libvirt.org/go/libvirtxml"

	"github.com/virtloom/virtloom/domain/convert"
	"github.com/virtloom/virtloom/template/offline"
	"github.com/virtloom/virtloom/template/render"
)

// guestOptions are the arguments of "refdaemon convert" and "refdaemon diff".
type guestOptions struct {
	manifests
	command string
	facts   string
	output  string // of convert

	live, applied string // of diff
}

// offlineVMI is a VMI read from manifests, with the facts of its node.
type offlineVMI struct {
	vmi   *offline.Cluster
	facts convert.Facts
}

// newConvert prints the libvirt domain of a VMI.
func newConvert() *cobra.Command {
	o := &guestOptions{command: "convert"}
	cmd := o.offline(&cobra.Command{
		Use: "convert -f FILE [-f FILE ...]", Short: "print the libvirt domain of a VMI or VirtualMachine, from manifests", Long: convertText,
		Example: `  refdaemon convert -f examples/convert/guest.yaml --facts examples/convert/facts.yaml
  kubectl get vmi web -o yaml | refdaemon convert -f -`,
	}, o.convert)
	outputFlag(cmd.Flags(), &o.output, "xml", "xml")
	return cmd
}

// offline completes a command that reads manifests and writes one result, atomically.
func (o *guestOptions) offline(cmd *cobra.Command, result func(io.Writer, io.Reader) error) *cobra.Command {
	o.manifests.flags(cmd.Flags())
	cmd.Flags().StringVar(&o.facts, "facts", "", "`file` (YAML or JSON) with facts of the node that override the assumed ones, - for standard input")
	cmd.Args = nothing
	cmd.PreRunE = checked(func([]string) error { return o.check() })
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		var text bytes.Buffer
		err := result(&text, os.Stdin)
		if err != nil && !errors.Is(err, errDiffers) {
			return err
		}
		if _, failed := cmd.OutOrStdout().Write(text.Bytes()); failed != nil {
			return failed
		}
		return err
	}
	return cmd
}

// check returns an error that names a missing or invalid flag.
func (o *guestOptions) check() error {
	if o.command == "diff" && o.live == "" {
		return errors.New("--live is required: specify a file with the XML of the running domain, or - for standard input")
	}
	if o.command == "convert" {
		if err := checkOutputFormat(o.output, "xml"); err != nil {
			return err
		}
	}
	return o.manifests.check(o.facts, o.live, o.applied)
}

// guest reads the manifests and the facts that do not come from a running domain.
func (o *guestOptions) guest(stdin io.Reader, known func(*convert.Facts)) (*offlineVMI, error) {
	c, err := o.read(o.command, stdin)
	if err != nil {
		return nil, err
	}
	if c.VMI == nil {
		return nil, &offline.Error{
			Reason: "VirtualMachineInstance not found", Remedy: "add its manifest with -f", Err: render.ErrMissingFact,
		}
	}
	g := &offlineVMI{vmi: c, facts: assumed(c)}
	if known != nil {
		known(&g.facts)
	}
	if o.facts == "" {
		return g, nil
	}
	text, name, err := readText(o.command, o.facts, stdin)
	if err != nil {
		return nil, err
	}
	return g, overlayFacts(&g.facts, name, text)
}

func (g *offlineVMI) convert() (*libvirtxml.Domain, error) {
	return convert.Convert(g.vmi.VMI, g.facts)
}

func (o *guestOptions) convert(out io.Writer, stdin io.Reader) error {
	g, err := o.guest(stdin, nil)
	if err != nil {
		return err
	}
	d, err := g.convert()
	if err != nil {
		return err
	}
	text, err := d.Marshal()
	if err != nil {
		return fmt.Errorf("convert: %w", err)
	}
	_, err = fmt.Fprintln(out, text)
	return err
}

const convertText = `Prints the libvirt domain of a VMI, from manifests and without a cluster or libvirt.
A VirtualMachine counts as the VMI that it is started with: its instance type, preference and
ControllerRevisions must be among the manifests.
The node is assumed to have everything that the VMI requests, at the paths of KubeVirt's
launcher Pod; --facts overrides that. A KubeVirt object among the manifests gives the
options of the cluster, claims their volume modes.
Exit code 1 means that a manifest, the facts or the VMI is invalid, 2 that an argument is.

Facts are an object with the fields of domain.Facts, in lower camel case:

  dir: /var/lib/virtloom/guests/web
  emulation: true
  bridges: {default: br0}
  disks:
    root: {path: /srv/root.qcow2, format: qcow2}
  firmware:
    secureBoot: {code: /usr/share/OVMF/OVMF_CODE_4M.ms.fd, vars: /usr/share/OVMF/OVMF_VARS_4M.ms.fd}`
