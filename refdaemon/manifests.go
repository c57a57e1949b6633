// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/virtloom/virtloom/refdaemon/configfile"
	"github.com/virtloom/virtloom/template/offline"
)

// words are the values of a flag that may be given several times.
type words []string

// String is part of pflag.Value.
func (w *words) String() string { return strings.Join(*w, ",") }

// Set is part of pflag.Value.
func (w *words) Set(word string) error {
	*w = append(*w, word)
	return nil
}

// Type is part of pflag.Value.
func (*words) Type() string { return "words" }

// outputFlag registers -o.
func outputFlag(fs *pflag.FlagSet, to *string, usual, formats string) {
	fs.StringVarP(to, "output", "o", usual, "output `format`: "+formats)
}

// checkOutputFormat checks the value of -o.
func checkOutputFormat(output string, formats ...string) error {
	if !slices.Contains(formats, output) {
		return fmt.Errorf("-o %s is unknown; use %s", output, strings.Join(formats, " or "))
	}
	return nil
}

// manifests are the arguments of offline commands that describe the cluster.
type manifests struct {
	files words
	raw   bool
}

func (m *manifests) flags(fs *pflag.FlagSet) {
	fs.VarP(&m.files, "filename", "f", "`file` of manifests, - for standard input; may be given several times")
	fs.BoolVar(&m.raw, "raw", false, "do not apply the defaults that KubeVirt's webhooks set on a new VirtualMachine and VMI")
}

// check checks the named files; others are the files of further flags.
func (m *manifests) check(others ...string) error {
	if len(m.files) == 0 {
		return errors.New("-f is required: specify a file of manifests, or - for standard input")
	}
	fromStdin := func(names []string) int {
		return len(names) - len(slices.DeleteFunc(slices.Clone(names), func(name string) bool { return name == "-" }))
	}
	switch manifests := fromStdin(m.files); {
	case manifests > 1:
		return errors.New("-f - is given twice, but standard input can be read only once")
	case manifests+fromStdin(others) > 1:
		return errors.New("standard input is given twice, but can be read only once")
	}
	return nil
}

// read reads all manifests, reports all their faults, starts the VM if there is one, and sets the defaults of the VMI.
func (m *manifests) read(command string, stdin io.Reader) (*offline.Cluster, error) {
	var (
		objects []offline.Object
		errs    []error
	)
	for _, name := range m.files {
		more, err := readManifests(command, name, stdin)
		objects, errs = append(objects, more...), append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	c, err := offline.NewCluster(objects...)
	if err != nil {
		return nil, err
	}
	c.FallbackLauncherImage = configfile.DefaultLauncherImage
	if err := c.Start(m.raw); err != nil {
		return nil, err
	}
	if c.VMI != nil && !m.raw {
		if c.VMI, err = offline.Default(c.VMI, c.KubeVirt); err != nil {
			return nil, err
		}
	}
	return c, nil
}

func readManifests(command, name string, stdin io.Reader) ([]offline.Object, error) {
	if name == "-" {
		return offline.Read("standard input", stdin)
	}
	f, err := os.Open(name)
	if err != nil {
		return nil, fmt.Errorf("%s: %w; specify a readable file", command, err)
	}
	defer f.Close()
	return offline.Read(name, f)
}

// readText reads another file and returns the name for its errors.
func readText(command, name string, stdin io.Reader) (text []byte, source string, err error) {
	if name == "-" {
		text, err = io.ReadAll(stdin)
		name = "standard input"
	} else {
		text, err = os.ReadFile(name)
	}
	if err != nil {
		return nil, name, fmt.Errorf("%s: %w; specify a readable file", command, err)
	}
	return text, name, nil
}
