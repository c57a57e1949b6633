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

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/template"
	"github.com/virtloom/virtloom/template/offline"
)

// guestOptions are the arguments of "refdaemon convert" and "refdaemon diff".
type guestOptions struct {
	manifests
	command string
	facts   string
	output  string // of convert

	live, applied string // of diff
}

// offlineGuest is a guest that was read, with what is known of its node.
type offlineGuest struct {
	vmi   *offline.Cluster
	facts domain.Facts
}

// newConvert prints the libvirt domain of a guest.
func newConvert() *cobra.Command {
	o := &guestOptions{command: "convert"}
	cmd := o.offline(&cobra.Command{
		Use: "convert -f FILE [-f FILE ...]", Short: "print the libvirt domain of a guest, from manifests", Long: convertText,
		Example: `  refdaemon convert -f examples/convert/guest.yaml --facts examples/convert/facts.yaml
  kubectl get vmi web -o yaml | refdaemon convert -f -`,
	}, o.convert)
	outputFlag(cmd.Flags(), &o.output, "xml", "xml")
	return cmd
}

// offline lets a command read manifests and write a result, whole or not at all.
func (o *guestOptions) offline(cmd *cobra.Command, result func(io.Writer, io.Reader) error) *cobra.Command {
	o.manifests.flags(cmd.Flags())
	cmd.Flags().StringVar(&o.facts, "facts", "", "`file` (YAML or JSON) with facts of the node that replace what is assumed, - for standard input")
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

// check tells which flag is missing or wrong.
func (o *guestOptions) check() error {
	if o.command == "diff" && o.live == "" {
		return errors.New("--live is required: name a file with the domain as it runs, or - for standard input")
	}
	if o.command == "convert" {
		if err := known(o.output, "xml"); err != nil {
			return err
		}
	}
	return o.manifests.check(o.facts, o.live, o.applied)
}

// guest reads the manifests, and the facts as far as they do not come from a running domain.
func (o *guestOptions) guest(stdin io.Reader, known func(*domain.Facts)) (*offlineGuest, error) {
	c, objects, err := o.read(o.command, stdin)
	if err != nil {
		return nil, err
	}
	if c.VMI == nil {
		return nil, &offline.Error{
			Reason: "there is no VirtualMachineInstance", Remedy: "add its manifest with -f", Err: template.ErrMissingFact,
		}
	}
	g := &offlineGuest{vmi: c, facts: assume(c, objects)}
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

func (g *offlineGuest) convert() (*libvirtxml.Domain, error) {
	return domain.Convert(g.vmi.VMI, g.facts)
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

const convertText = `Prints the libvirt domain of a guest, from manifests and without a cluster or libvirt.
The node is assumed to have all the guest asks for, at the places where KubeVirt's
launcher Pod has it; --facts says what is different. A KubeVirt object among the
manifests gives the options of the cluster, claims their volume modes.
Exit code 1 means that a manifest, the facts or the guest is wrong, 2 that an argument is.

Facts are an object with the fields of domain.Facts, in lower camel case:

  dir: /var/lib/virtloom/guests/web
  emulation: true
  bridges: {default: br0}
  disks:
    root: {path: /srv/root.qcow2, format: qcow2}
  firmware:
    secureBoot: {code: /usr/share/OVMF/OVMF_CODE_4M.ms.fd, vars: /usr/share/OVMF/OVMF_VARS_4M.ms.fd}`
