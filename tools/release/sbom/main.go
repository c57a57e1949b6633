// SPDX-License-Identifier: Apache-2.0

// Command sbom writes what a Go program consists of, in the format CycloneDX: as the compiler has noted it in the program, by
// the generator of the CycloneDX project, with the licences that package licence has found.
//
//	sbom -C DIR -o FILE PROGRAM
//
// DIR is the module that the program was built from; its dependencies are in the module cache. The same program gives the same
// file: its time is SOURCE_DATE_EPOCH, and its number follows from the program.
package main

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	cdx "github.com/CycloneDX/cyclonedx-go"
	"github.com/CycloneDX/cyclonedx-gomod/pkg/generate/bin"
	"github.com/google/uuid"
	"github.com/rs/zerolog"

	"github.com/virtloom/virtloom/tools/release/licence"
)

const (
	generator = "github.com/CycloneDX/cyclonedx-gomod"
	// standard is the generator's name for Go's library.
	standard = "std"
	own      = "Apache-2.0"
)

func main() {
	dir := flag.String("C", ".", "the folder of the module")
	out := flag.String("o", "", "the file to write")
	flag.Parse()
	if err := run(*dir, *out, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "sbom:", err)
		os.Exit(1)
	}
}

func run(dir, out string, args []string) error {
	if out == "" || len(args) != 1 {
		return errors.New("usage: sbom -C DIR -o FILE PROGRAM")
	}
	epoch, err := strconv.ParseInt(os.Getenv("SOURCE_DATE_EPOCH"), 10, 64)
	if err != nil {
		return fmt.Errorf("SOURCE_DATE_EPOCH is to be a number of seconds: %w", err)
	}
	program, err := os.ReadFile(args[0])
	if err != nil {
		return err
	}
	log := zerolog.New(os.Stderr).Level(zerolog.WarnLevel)
	g, err := bin.NewGenerator(args[0], bin.WithIncludeStdlib(true), bin.WithLogger(log))
	if err != nil {
		return err
	}
	bom, err := g.Generate()
	if err != nil {
		return err
	}
	bom.SerialNumber = uuid.NewSHA1(uuid.NameSpaceURL, program).URN()
	bom.Metadata.Timestamp = time.Unix(epoch, 0).UTC().Format(time.RFC3339)
	bom.Metadata.Tools = &cdx.ToolsChoice{Components: &[]cdx.Component{
		{Type: cdx.ComponentTypeApplication, Name: generator, Version: pinned(generator)},
	}}
	bom.Metadata.Component.Licenses = choice([]string{own})
	if err := license(dir, *bom.Components); err != nil {
		return err
	}
	var text bytes.Buffer
	if err := cdx.NewBOMEncoder(&text, cdx.BOMFileFormatJSON).SetPretty(true).SetEscapeHTML(false).Encode(bom); err != nil {
		return err
	}
	return os.WriteFile(out, text.Bytes(), 0o644)
}

// pinned is the version of a module that this program is built with.
func pinned(module string) string {
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, d := range info.Deps {
			if d.Path == module {
				return d.Version
			}
		}
	}
	return ""
}

// license adds the licences of modules.
func license(dir string, components []cdx.Component) error {
	dirs, err := folders(dir, components)
	if err != nil {
		return err
	}
	for i := range components {
		c := &components[i]
		folder := dirs[c.Name]
		files, err := licence.Of(folder, folder)
		if err != nil {
			return fmt.Errorf("%s %s: %w", c.Name, c.Version, err)
		}
		c.Licenses = choice(licence.IDs(files))
	}
	return nil
}

// choice is licences all of which hold.
func choice(ids []string) *cdx.Licenses {
	var out cdx.Licenses
	for _, id := range ids {
		out = append(out, cdx.LicenseChoice{License: &cdx.License{ID: id}})
	}
	return &out
}

// folders finds modules in the module cache, by name.
func folders(dir string, components []cdx.Component) (map[string]string, error) {
	args := []string{"list", "-m", "-f", "{{.Path}}\t{{.Version}}\t{{.Dir}}"}
	version := map[string]string{}
	for _, c := range components {
		if c.Name != standard {
			args = append(args, c.Name)
			version[c.Name] = c.Version
		}
	}
	out, err := goCommand(dir, args...)
	if err != nil {
		return nil, err
	}
	root, err := goCommand(dir, "env", "GOROOT")
	if err != nil {
		return nil, err
	}
	found := map[string]string{standard: strings.TrimSpace(root)}
	for line := range strings.Lines(out) {
		f := strings.Split(strings.TrimSuffix(line, "\n"), "\t")
		if len(f) != 3 || f[2] == "" || f[1] != version[f[0]] {
			return nil, fmt.Errorf("the program was built with %s, and this module has %q", version[f[0]], line)
		}
		found[f[0]] = filepath.Clean(f[2])
	}
	return found, nil
}

func goCommand(dir string, args ...string) (string, error) {
	cmd := exec.Command("go", args...)
	var stderr bytes.Buffer
	cmd.Dir, cmd.Stderr = dir, &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("go %s: %w\n%s", args[0], err, stderr.String())
	}
	return string(out), nil
}
