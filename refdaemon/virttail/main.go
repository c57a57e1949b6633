// SPDX-License-Identifier: Apache-2.0

// Command virttail is /usr/bin/virt-tail of the launcher's image: the program of the container guest-console-log, which prints
// the log of the guest's serial console into its own log:
//
//	virt-tail --logfile PATH
//
// It waits for the file, follows it across truncation and replacement, and upon SIGTERM prints what is left and ends.
package main

import (
	"bufio"
	"context"
	"errors"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/virtloom/virtloom/refdaemon/lines"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	err := run(ctx, os.Args[1:], os.Stdout)
	stop()
	if err != nil {
		_, _ = os.Stderr.WriteString("virt-tail: " + err.Error() + "\n")
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, to io.Writer) error {
	path, err := parse(args)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	f := lines.Follower{Path: path, Line: func(line []byte) {
		out := bufio.NewWriterSize(to, len(line)+1)
		_, _ = out.Write(line)
		_ = out.WriteByte('\n')
		if err := out.Flush(); err != nil {
			cancel(err) // it has no reader any more
		}
	}}
	err = f.Run(ctx)
	if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, context.Canceled) {
		err = errors.Join(err, cause)
	}
	return err
}

// parse returns the path of --logfile.
func parse(args []string) (string, error) {
	const usage = "usage: virt-tail --logfile PATH, an absolute path"
	var path string
	switch value, joined := strings.CutPrefix(strings.Join(args, " "), "--logfile="); {
	case len(args) == 1 && joined:
		path = value
	case len(args) == 2 && args[0] == "--logfile":
		path = args[1]
	}
	if !filepath.IsAbs(path) {
		return "", errors.New(usage)
	}
	return path, nil
}
