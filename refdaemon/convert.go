// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"

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

// runConvert prints the libvirt domain of a guest.
func runConvert(_ context.Context, args []string, out io.Writer) error {
	o := &guestOptions{command: "convert"}
	fs := flag.NewFlagSet("refdaemon convert", flag.ContinueOnError)
	o.flags(fs)
	fs.StringVar(&o.output, "o", "xml", "output `format`: xml")
	return o.run(fs, args, out, convertUsage, o.convert)
}

func (o *guestOptions) flags(fs *flag.FlagSet) {
	fs.SetOutput(io.Discard) // errors are reported once, by main
	o.manifests.flags(fs)
	fs.StringVar(&o.facts, "facts", "", "`file` (YAML or JSON) with facts of the node that replace what is assumed, - for standard input")
}

// run parses arguments and writes the result of a command, whole or not at all.
func (o *guestOptions) run(fs *flag.FlagSet, args []string, out io.Writer, usage string, result func(io.Writer, io.Reader) error) error {
	err := fs.Parse(args)
	if errors.Is(err, flag.ErrHelp) {
		_, _ = fmt.Fprintln(out, usage+"\n\nFlags:")
		fs.SetOutput(out)
		fs.PrintDefaults()
		return err
	}
	if err == nil {
		err = o.check(fs)
	}
	if err != nil {
		return usageError{fmt.Errorf("%s: %w; refdaemon %[1]s -h tells how", o.command, err)}
	}
	var text bytes.Buffer
	err = result(&text, os.Stdin)
	if err != nil && !errors.Is(err, errDiffers) {
		return err
	}
	_, failed := out.Write(text.Bytes())
	if failed != nil {
		return failed
	}
	return err
}

// check tells which flag is missing or wrong.
func (o *guestOptions) check(fs *flag.FlagSet) error {
	if fs.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q", fs.Arg(0))
	}
	if o.command == "diff" && o.live == "" {
		return errors.New("--live is required: name a file with the domain as it runs, or - for standard input")
	}
	if o.command == "convert" && o.output != "xml" {
		return fmt.Errorf("-o %s is unknown; use xml", o.output)
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

const convertUsage = `Usage: refdaemon convert -f FILE [-f FILE ...] [flags]

Prints the libvirt domain of a guest, from manifests and without a cluster or libvirt.
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
