// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"runtime"
	"runtime/debug"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/virtloom/virtloom/internal/plaintext"
)

// provenance is the build information of this program.
type provenance struct {
	// Version is that of the module; (devel) for a build in its own tree.
	Version string `json:"version"`
	// Revision and Time are those of the commit, Modified marks uncommitted changes; empty for builds
	// without them (go build -buildvcs=false).
	Revision string `json:"revision,omitempty"`
	Time     string `json:"time,omitempty"`
	Modified bool   `json:"modified,omitempty"`
	// Go is the version of the compiler, Platform the target, Tags the build tags.
	Go       string `json:"go"`
	Platform string `json:"platform"`
	Tags     string `json:"tags,omitempty"`
	// KubeVirt is the version of KubeVirt's API, ControllerRuntime that of the library.
	KubeVirt          string `json:"kubevirtAPI"`
	ControllerRuntime string `json:"controllerRuntime"`
}

// buildOf converts the compiler's build information.
func buildOf(info *debug.BuildInfo) provenance {
	b := provenance{Version: info.Main.Version, Go: info.GoVersion, Platform: runtime.GOOS + "/" + runtime.GOARCH}
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			b.Revision = s.Value
		case "vcs.time":
			b.Time = s.Value
		case "vcs.modified":
			b.Modified = s.Value == "true"
		case "-tags":
			b.Tags = s.Value
		}
	}
	for _, d := range info.Deps {
		if d.Replace != nil {
			d = d.Replace
		}
		switch d.Path {
		case "kubevirt.io/api":
			b.KubeVirt = d.Version
		case "sigs.k8s.io/controller-runtime":
			b.ControllerRuntime = d.Version
		}
	}
	return b
}

// thisBuild returns the build information of this program.
func thisBuild() provenance {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		info = &debug.BuildInfo{GoVersion: runtime.Version(), Main: debug.Module{Version: "unknown"}}
	}
	return buildOf(info)
}

// version returns the version of this program.
func version() string { return thisBuild().Version }

// Write prints it as text.
func (b provenance) Write(out io.Writer) error {
	revision := b.Revision
	if b.Modified {
		revision += " with changes"
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	for _, line := range [][2]string{
		{"refdaemon", b.Version}, {"revision", revision}, {"time", b.Time}, {"go", b.Go}, {"platform", b.Platform}, {"tags", b.Tags},
		{"kubevirt.io/api", b.KubeVirt}, {"controller-runtime", b.ControllerRuntime},
	} {
		if line[1] != "" {
			_, _ = fmt.Fprintf(w, "%s\t%s\n", line[0], line[1])
		}
	}
	return w.Flush()
}

func newVersion() *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use: "version", Short: "print the build information of this program",
		Long: `Prints the build information of this program: the version of the module, the commit, the compiler,
and the supported version of KubeVirt's API.`,
		Example: "  refdaemon version\n  refdaemon version -o json",
		Args:    nothing,
		PreRunE: checked(func([]string) error { return checkOutputFormat(output, "text", "json") }),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return printResult(cmd.OutOrStdout(), output, thisBuild())
		},
	}
	outputFlag(cmd.Flags(), &output, "text", "text or json")
	return cmd
}

// writer is a result with a text form.
type writer interface{ Write(io.Writer) error }

// printResult writes a result in the requested format, atomically.
func printResult(out io.Writer, format string, result writer) error {
	var text bytes.Buffer
	if format == "text" {
		if err := result.Write(plaintext.Writer{To: &text}); err != nil {
			return err
		}
	} else {
		e := json.NewEncoder(&text)
		e.SetEscapeHTML(false)
		e.SetIndent("", "  ")
		if err := e.Encode(result); err != nil {
			return err
		}
	}
	_, err := out.Write(text.Bytes())
	return err
}
