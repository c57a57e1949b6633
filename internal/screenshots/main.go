// SPDX-License-Identifier: Apache-2.0

// Command screenshots draws what "make demo" prints as pictures for the documentation, one for each of its acts that is
// shown there, or tells whether the pictures that are there show what the demo prints now. The demo that
// "make test" runs leaves what it prints in bin/.log/demo.log, which is what this reads.
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
	demo := fs.String("demo", "bin/.log/demo.log", "`file` with what the demo has printed")
	dir := fs.String("dir", "docs/images", "`folder` of the pictures")
	check := fs.Bool("check", false, "draw nothing; fail if the pictures do not show what the demo prints")
	if err := fs.Parse(args); err != nil {
		return err
	}
	text, err := os.ReadFile(*demo)
	if err != nil {
		return fmt.Errorf("read what the demo has printed: %w", err)
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

// shows tells what is wrong with a picture of these lines.
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
