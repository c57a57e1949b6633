// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/virtloom/virtloom/internal/refcluster"
)

var (
	kills = flag.Int("kills", 0, "kill the demo `n` times, each time in another second")
	seed  = flag.Uint64("seed", uint64(time.Now().UnixNano()), "`number` that decides when the demo is killed, and how")
)

// demoTakes is within which time the demo is killed.
const demoTakes = 100 * time.Second

// TestDemo_KilledAtAnyTime: whenever the demo is interrupted or killed, with all of its process group, nothing of it is left.
func TestDemo_KilledAtAnyTime(t *testing.T) {
	if *kills == 0 {
		t.Skip("run by make nightly")
	}
	program := filepath.Join(t.TempDir(), "demo")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-tags", "libvirt_dlopen", "-o", program, ".").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	t.Logf("-seed %d", *seed)
	dice := rand.New(rand.NewPCG(*seed, 0)) //nolint:gosec // it can be repeated
	for range *kills {
		after := time.Duration(dice.Int64N(int64(demoTakes)))
		signal := []syscall.Signal{syscall.SIGINT, syscall.SIGKILL}[dice.IntN(2)]
		t.Run(fmt.Sprintf("%v after %v", signal, after.Round(time.Millisecond)), func(t *testing.T) { killed(t, program, after, signal) })
	}
}

func killed(t *testing.T, program string, after time.Duration, signal syscall.Signal) {
	dir, err := os.MkdirTemp("", "demo-") // a name that is short enough for sockets in it
	if err != nil {
		t.Fatal(err)
	}
	var said bytes.Buffer
	demo := exec.CommandContext(t.Context(), program)
	demo.Env = append(os.Environ(), "TMPDIR="+dir)
	demo.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	demo.Stdout, demo.Stderr = &said, &said
	if err := demo.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		t.Logf("the demo has ended: %v", demo.Wait())
		close(ended)
	}()
	select {
	case <-ended:
	case <-time.After(after):
	}
	rigs, err := filepath.Glob(filepath.Join(dir, "virtloom-rig-*"))
	if err := errors.Join(err, syscall.Kill(-demo.Process.Pid, signal)); err != nil && !errors.Is(err, syscall.ESRCH) {
		t.Error(err)
	}
	<-ended
	err = refcluster.Await(t.Context(), patience, "nothing to be left", func(context.Context) error {
		if err := os.Remove(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		for _, r := range append(rigs, dir) {
			if left, err := refcluster.Leftovers(r); err != nil || len(left) > 0 {
				return fmt.Errorf("of %s: %q, %w", r, left, err)
			}
		}
		return nil
	})
	if err != nil {
		t.Errorf("%v\n%s", err, &said)
	}
}
