// SPDX-License-Identifier: Apache-2.0

package rig

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// journals is the folder of the watchdogs' journals, in that of the programs. What a journal says is done by the rig that finds it, so
// only those who can change the programs can write there.
const journals = ".rigs"

// journalLimit bounds what is read of a journal, which has a line for each process.
const journalLimit = 16 << 20

// newJournal creates a journal, which is locked for as long as the owner of a rig or its watchdog lives.
func newJournal(dir, name string) (*os.File, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(filepath.Join(dir, name), os.O_CREATE|os.O_EXCL|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return nil, err
	}
	if err := lock(f); err != nil {
		return nil, errors.Join(fmt.Errorf("lock %s: %w", f.Name(), err), discard(f))
	}
	return f, nil
}

func lock(f *os.File) error { return unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) }

// discard removes a journal, if the watchdog has not.
func discard(f *os.File) error {
	err := os.Remove(f.Name())
	if errors.Is(err, os.ErrNotExist) {
		err = nil
	}
	return errors.Join(err, f.Close())
}

// reap removes what is left of rigs that have lost both their owner and their watchdog, as hack/undo.sh does.
func reap(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("find what earlier rigs have left: %w", err)
	}
	var errs []error
	for _, e := range entries {
		if err := reapOne(filepath.Join(dir, e.Name())); err != nil && !errors.Is(err, os.ErrNotExist) {
			errs = append(errs, fmt.Errorf("remove what an earlier rig has left, by %s: %w", e.Name(), err))
		}
	}
	return errors.Join(errs...)
}

func reapOne(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	said, err := io.ReadAll(io.LimitReader(f, journalLimit))
	if err != nil || len(said) == 0 { // it is about to be locked
		return err
	}
	if !bytes.Contains(said, []byte("\ndir "+path+"\n")) { // a copy of one that may be locked
		return os.Remove(path)
	}
	if err := lock(f); err != nil {
		if errors.Is(err, unix.EWOULDBLOCK) { // the rig lives
			err = nil
		}
		return err
	}
	cmd := exec.Command("/bin/sh", "-c", watchdogScript, "virtloom-watchdog")
	cmd.Dir, cmd.Stdin = "/", bytes.NewReader(said)
	return cmd.Run()
}
