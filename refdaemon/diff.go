// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"
	"libvirt.org/go/libvirtxml"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/convert"
	"github.com/virtloom/virtloom/domain/diff"
	"github.com/virtloom/virtloom/domain/status"
	"github.com/virtloom/virtloom/template/offline"
)

// errDiffers is the result of "refdaemon diff" when there are differences; its exit code is exitDiffers.
var errDiffers = errors.New("the running domain differs from its VMI")

// exitDiffers is neither a failure (1) nor a wrong argument (2).
const exitDiffers = 3

// newDiff prints the differences between a running domain and its VMI.
func newDiff() *cobra.Command {
	o := &guestOptions{command: "diff"}
	cmd := o.offline(&cobra.Command{
		Use: "diff -f FILE [-f FILE ...] --live FILE", Short: "print how a running domain differs from its VMI, from files", Long: diffText,
		Example: `  refdaemon diff -f examples/convert/guest.yaml --facts examples/convert/facts.yaml --live examples/convert/live.xml
  virsh dumpxml web | refdaemon diff -f guest.yaml --live -`,
	}, o.diff)
	cmd.Flags().StringVar(&o.live, "live", "", "`file` with the XML of the running domain (virsh dumpxml), - for standard input")
	cmd.Flags().StringVar(&o.applied, "applied", "", "`file` with the XML of the domain that was last applied; empty is the one that virtloom recorded in the running domain, if any")
	return cmd
}

func (o *guestOptions) diff(out io.Writer, stdin io.Reader) error {
	live, err := o.domain(o.live, stdin)
	if err != nil {
		return err
	}
	last, err := o.lastApplied(live, stdin)
	if err != nil {
		return err
	}
	g, err := o.guest(stdin, func(f *convert.Facts) {
		f.Layout, f.Emulation = convert.LayoutOf(live), status.Emulated(live)
	})
	if err != nil {
		return err
	}
	desired, err := g.convert()
	if err != nil {
		return err
	}
	found, err := diff.Compare(desired, last, live)
	if err != nil {
		return err
	}
	for _, x := range found {
		_, _ = fmt.Fprintln(out, x)
	}
	if len(found) > 0 {
		return errDiffers
	}
	return nil
}

// lastApplied returns the domain that --applied names, or the one recorded in the running domain; nil if neither exists.
func (o *guestOptions) lastApplied(live *libvirtxml.Domain, stdin io.Reader) (*libvirtxml.Domain, error) {
	if o.applied != "" {
		return o.domain(o.applied, stdin)
	}
	m, _, err := domain.MetadataOf(live)
	if err != nil {
		return nil, fmt.Errorf("diff: %s: %w", o.live, err)
	}
	last, err := diff.LastApplied(m)
	if err != nil {
		return nil, fmt.Errorf("diff: %s: %w", o.live, err)
	}
	return last, nil
}

// domain reads the XML of a domain.
func (o *guestOptions) domain(file string, stdin io.Reader) (*libvirtxml.Domain, error) {
	text, name, err := readText(o.command, file, stdin)
	if err != nil {
		return nil, err
	}
	d := &libvirtxml.Domain{}
	if err := d.Unmarshal(string(text)); err != nil {
		return nil, &offline.Error{
			Source: offline.Source{File: name}, Object: "domain", Reason: "is not the XML of a libvirt domain",
			Remedy: "use the output of virsh dumpxml", Err: err,
		}
	}
	return d, nil
}

const diffText = `Prints how a running domain differs from its VMI, from files alone: one line for each
difference, with the field, both values, when it can be applied (Live, NeedsMigration,
NextBoot, NeedsRecreation) and why. Addresses of devices and software emulation are taken
from the running domain; all other facts of the node are assumed as by refdaemon convert.
Exit code 0 means that nothing differs, 3 that something does, 1 that a file or the VMI is
invalid, 2 that an argument is.`
