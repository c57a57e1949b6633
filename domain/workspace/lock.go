// SPDX-License-Identifier: Apache-2.0

package workspace

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// lockFile, in the root of a workspace, is locked by the agent that uses it.
	lockFile = "agent.lock"
	// lockEvery is the interval between attempts.
	lockEvery = 200 * time.Millisecond
)

// Lock makes this process the only one that uses the workspace, until unlock is called or the
// process ends: a second agent of the node would repeat its operations. It waits for another agent
// until ctx ends; the error then identifies that agent.
func (w *Workspace) Lock(ctx context.Context) (unlock func() error, err error) {
	if err := os.MkdirAll(w.Root, 0o700); err != nil {
		return nil, fmt.Errorf("workspace: directory of the node: %w", err)
	}
	path := filepath.Join(w.Root, lockFile)
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600) //nolint:gosec // a fixed name in the node's directory
	if err != nil {
		return nil, fmt.Errorf("workspace: lock the node: %w", err)
	}
	if err := lock(ctx, f); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	// The holder's identity is for people, and of no consequence.
	if err := f.Truncate(0); err == nil {
		_, _ = fmt.Fprintf(f, "process %d\n", os.Getpid())
	}
	return f.Close, nil
}

// lock waits for the lock of a file, which is released when the file is closed.
func lock(ctx context.Context, f *os.File) error {
	t := time.NewTicker(lockEvery)
	defer t.Stop()
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("workspace: lock %s: %w", f.Name(), err)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("workspace: lock %s: another agent of this node holds it, %s; stop that agent first: %w", f.Name(), holder(f), ctx.Err())
		case <-t.C:
		}
	}
}

// holder is the identity that the holder of the lock has written.
func holder(f *os.File) string {
	text := make([]byte, 64)
	n, err := f.ReadAt(text, 0)
	if n == 0 && err != nil {
		return "unknown process"
	}
	return strings.ToValidUTF8(strings.TrimSpace(string(text[:n])), "?")
}
