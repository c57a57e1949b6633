// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/virtloom/virtloom/refdaemon/configfile"
	"github.com/virtloom/virtloom/template"
	"github.com/virtloom/virtloom/template/offline"
	"github.com/virtloom/virtloom/template/render"
)

// podNames are the Pods that can be rendered, in the order in which help lists them.
var podNames = []struct {
	name  string
	kind  render.PodKind
	about string
}{
	{"launcher", render.LauncherPod, "the launcher Pod of the VMI, or of the VMI that a VirtualMachine is started with"},
	{"temporary", render.TemporaryPod, "the Pod that acts as the first consumer of claims in its place"},
	{"migration", render.TargetPod, "the target Pod of a migration"},
	{"hotplug", render.AttachmentPod, "the Pod that holds hotplugged volumes"},
	{"trigger", render.TriggerPod, "the Pod that triggers the provisioning of one such volume"},
	{"exporter", render.ExporterPod, "the Pod that serves a VirtualMachineExport, without the exported volumes"},
}

// fieldPath is the value of a flag that names a field. An empty value, perhaps of an unset variable, is an error, unlike an
// absent flag.
type fieldPath string

// String is part of pflag.Value.
func (p *fieldPath) String() string { return string(*p) }

// Type is part of pflag.Value.
func (*fieldPath) Type() string { return "path" }

// Set is part of pflag.Value.
func (p *fieldPath) Set(path string) error {
	if path == "" {
		return errors.New("must not be empty; use the path of a field, or a dot for the whole Pod")
	}
	*p = fieldPath(path)
	return nil
}

// renderOptions are the arguments of "refdaemon render".
type renderOptions struct {
	manifests
	kind          render.PodKind
	volumes       words
	output        string
	explain       fieldPath
	resources     bool
	launcherImage string
	exporterImage string
	shimImage     string
}

// newRender renders one Pod from manifests. Nothing but the result is written to standard output.
func newRender() *cobra.Command {
	o := &renderOptions{}
	cmd := &cobra.Command{
		Use: "render KIND -f FILE [-f FILE ...]", Short: "print a Pod of a VMI or VirtualMachine, from manifests",
		Long: renderText(),
		Example: `  refdaemon render launcher -f examples/render/guest.yaml -f examples/render/claim.yaml -f examples/render/kubevirt.yaml
  refdaemon render launcher -f examples/render/guest.yaml -f examples/render/claim.yaml --image mine \
    --explain spec.containers[compute].image
  kubectl get vmi web -o yaml | refdaemon render launcher -f - --image mine --explain-resources`,
		ValidArgs: allPods(),
		Args:      checked(o.parse),
		PreRunE:   checked(func([]string) error { return o.check() }),
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, in, err := o.input(os.Stdin)
			if err != nil {
				return err
			}
			// The result is complete before any of it is written.
			var text bytes.Buffer
			if err := o.write(&text, c, in); err != nil {
				return err
			}
			_, err = cmd.OutOrStdout().Write(text.Bytes())
			return err
		},
	}
	o.flags(cmd.Flags())
	return cmd
}

func (o *renderOptions) flags(fs *pflag.FlagSet) {
	o.manifests.flags(fs)
	fs.Var(&o.volumes, "volume", "`name` of a volume to hotplug; may be given several times. None means all hotplugged volumes")
	outputFlag(fs, &o.output, "", "yaml (the default) or json")
	fs.Var(&o.explain, "explain", "print the origin of a field of the Pod, given its `path`, such as spec.containers[compute].resources.requests[memory]; a dot stands for the whole Pod")
	fs.BoolVar(&o.resources, "explain-resources", false, "print the terms of each request and limit")
	fs.StringVar(&o.launcherImage, "image", "", "`image` of virt-launcher; empty is that of the KubeVirt manifest")
	fs.StringVar(&o.shimImage, "sidecar-shim-image", "", "`image` of hook sidecars that name none; empty is that of the KubeVirt manifest, else the one beside the launcher's")
	fs.StringVar(&o.exporterImage, "exporter-image", "", "`image` of exporters; empty is that of the KubeVirt manifest")
}

// parse reads the kind of Pod.
func (o *renderOptions) parse(kinds []string) error {
	if len(kinds) != 1 {
		return fmt.Errorf("specify one kind of Pod, of %s; got %d", strings.Join(allPods(), ", "), len(kinds))
	}
	i := slices.Index(allPods(), kinds[0])
	if i < 0 {
		return fmt.Errorf("%q is not a kind of Pod; use one of %s", kinds[0], strings.Join(allPods(), ", "))
	}
	o.kind = podNames[i].kind
	return nil
}

func allPods() (names []string) {
	for _, p := range podNames {
		names = append(names, p.name)
	}
	return names
}

// check returns an error that names a missing, invalid or excluded flag.
func (o *renderOptions) check() error {
	if err := o.manifests.check(); err != nil {
		return err
	}
	explains := o.explain != "" || o.resources
	if o.output != "" {
		if err := checkOutputFormat(o.output, "yaml", "json"); err != nil {
			return err
		}
	}
	for _, fault := range []struct {
		there bool
		says  string
	}{
		{o.explain != "" && o.resources, "--explain and --explain-resources exclude each other"},
		{o.output != "" && explains, "-o is the format of a Pod, which --explain and --explain-resources do not print"},
		{len(o.volumes) > 0 && o.kind&render.HotplugPods == 0, "--volume is for hotplug and trigger"},
	} {
		if fault.there {
			return errors.New(fault.says)
		}
	}
	return nil
}

// input reads all manifests and reports all their faults.
func (o *renderOptions) input(stdin io.Reader) (*offline.Cluster, template.Input, error) {
	c, err := o.read("render", stdin)
	if err != nil {
		return nil, template.Input{}, err
	}
	c.LauncherImage, c.ExporterImage, c.Volumes = o.launcherImage, o.exporterImage, o.volumes
	c.SidecarShimImage = o.shimImage
	in, err := c.Input(o.kind)
	return c, in, err
}

// write renders and prints what was asked for.
func (o *renderOptions) write(out io.Writer, c *offline.Cluster, in template.Input) error {
	if o.explain == "" && !o.resources {
		pod, err := template.Default().Render(o.kind, in)
		if err != nil {
			return err
		}
		return writePod(out, pod, o.output)
	}
	e, err := template.Default().Explain(o.kind, in)
	if err != nil {
		return err
	}
	if o.resources {
		return writeAmounts(out, e.Amounts())
	}
	return writeOrigins(out, c, e, string(o.explain))
}

func writePod(out io.Writer, pod *corev1.Pod, format string) error {
	var (
		text []byte
		err  error
	)
	if format == "json" {
		text, err = json.MarshalIndent(pod, "", "  ")
		text = append(text, '\n')
	} else {
		text, err = yaml.Marshal(pod)
	}
	if err != nil {
		return fmt.Errorf("render: %w", err)
	}
	_, err = out.Write(text)
	return err
}

// writeOrigins prints the value of every field at a path and, below it, its origin: in the VMI and, for a VMI that was made
// from a VM, what set that field of it.
func writeOrigins(out io.Writer, c *offline.Cluster, e *render.Explanation, path string) error {
	origins, err := e.At(path)
	if err != nil {
		return err
	}
	for _, origin := range origins {
		value, err := e.Value(origin.Path)
		if err != nil {
			return err
		}
		_, from, _ := strings.Cut(origin.String(), ": ")
		_, _ = fmt.Fprintf(out, "%s = %s\n  %s\n", origin.Path, cmp.Or(value, "(dropped)"), from)
		for _, field := range fieldsOf(origin) {
			if made := c.From(field); made != "" {
				_, _ = fmt.Fprintf(out, "  %s: %s\n", field, made)
			}
		}
	}
	return nil
}

// fieldsOf returns the fields of the VMI that an origin names, once each, without those that identify it.
func fieldsOf(o render.Origin) (fields []string) {
	named := []string{o.From}
	for _, t := range o.Terms {
		named = append(named, t.From)
	}
	for _, from := range named {
		for _, field := range strings.FieldsFunc(from, func(r rune) bool { return r == ' ' || r == ',' }) {
			ofGuest := strings.HasPrefix(field, "spec.") || strings.HasPrefix(field, "metadata.labels") || strings.HasPrefix(field, "metadata.annotations")
			if ofGuest && !slices.Contains(fields, field) {
				fields = append(fields, field)
			}
		}
	}
	return fields
}

// writeAmounts prints every amount and, below it, its terms.
func writeAmounts(out io.Writer, amounts []render.Amount) error {
	var table bytes.Buffer
	w := tabwriter.NewWriter(&table, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(w, "CONTAINER\tRESOURCE\tAMOUNT\tTERM\tFROM")
	for i := range amounts {
		a, set := &amounts[i], "requests."
		if a.Limit {
			set = "limits."
		}
		from := a.Origin.From
		if len(a.Origin.Terms) > 0 {
			from = "" // each term has its own
		}
		_, _ = fmt.Fprintf(w, "%s\t%s%s\t%s\t\t%s\n", a.Container, set, a.Resource, a.Quantity.String(), from)
		for _, t := range a.Origin.Terms {
			_, _ = fmt.Fprintf(w, "\t\t  %s\t%s\t%s\n", t.Amount.String(), t.Name, t.From)
		}
	}
	if err := w.Flush(); err != nil {
		return fmt.Errorf("render: %w", err)
	}
	for line := range strings.Lines(table.String()) {
		if _, err := fmt.Fprintln(out, strings.TrimRight(line, " \n")); err != nil {
			return fmt.Errorf("render: %w", err)
		}
	}
	return nil
}

func renderText() string {
	var b strings.Builder
	b.WriteString("Prints a Pod as the controllers would create it, from manifests and without a cluster.\n" +
		"A VirtualMachine counts as the VMI that it is started with: its instance type, preference and\n" +
		"ControllerRevisions must be among the manifests.\n" +
		"Without --image and a KubeVirt manifest the launcher's image is the default of refdaemon controller,\n" +
		configfile.DefaultLauncherImage + ".\n" +
		"Exit code 1 means that a manifest is invalid or missing, 2 that an argument is.\n\nKinds:")
	for _, p := range podNames {
		_, _ = fmt.Fprintf(&b, "\n  %-12s %s", p.name, p.about)
	}
	return b.String()
}
