// SPDX-License-Identifier: Apache-2.0

// Command screenshots draws the output of "make demo" as pictures for the documentation, one for each act that is
// shown there, or checks that the existing pictures show the current output of the demo. The demo that
// "make test" runs writes its output into bin/.log/demo.log, which this command reads.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// scenes are the acts of the demo that are drawn, by the beginnings of their headings.
var scenes = []struct{ file, heading string }{
	{"demo-start.svg", "Applying the manifests of a guest"},
	{"demo-migration.svg", "Migrating the guest"},
	{"demo-summary.svg", "Summary"},
}

func main() {
	if err := run(os.Args[1:], os.Stdout); err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "FAILED:", err)
		os.Exit(1)
	}
}

func run(args []string, out io.Writer) error {
	fs := flag.NewFlagSet("screenshots", flag.ContinueOnError)
	fs.SetOutput(out)
	demo := fs.String("demo", "bin/.log/demo.log", "`file` with the output of the demo")
	dir := fs.String("dir", "docs/images", "`folder` of the pictures")
	check := fs.Bool("check", false, "draw nothing; fail if the pictures do not show the output of the demo")
	if err := fs.Parse(args); err != nil {
		return err
	}
	text, err := os.ReadFile(*demo)
	if err != nil {
		return fmt.Errorf("read the output of the demo: %w", err)
	}
	var errs []error
	for _, s := range scenes {
		lines, err := act(string(text), s.heading)
		if err != nil {
			return err
		}
		path := filepath.Join(*dir, s.file)
		if *check {
			errs = append(errs, shows(path, lines))
			continue
		}
		if err := os.WriteFile(path, draw(abridge(lines)), 0o644); err != nil { //nolint:gosec // it is documentation
			return fmt.Errorf("write a picture: %w", err)
		}
		_, _ = fmt.Fprintln(out, path)
	}
	return errors.Join(errs...)
}

// shows returns an error if a picture does not show these lines.
func shows(path string, lines []string) error {
	picture, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("read a picture: %w", err)
	}
	shown, err := read(picture)
	if err == nil {
		err = compare(shown, lines)
	}
	if err != nil {
		return fmt.Errorf("%s (go run ./internal/screenshots draws it anew): %w", path, err)
	}
	return nil
}
