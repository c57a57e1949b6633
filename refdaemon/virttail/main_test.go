// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// inPlace makes the test binary the program.
const inPlace = "VIRTLOOM_TEST_VIRT_TAIL"

func TestMain(m *testing.M) {
	if os.Getenv(inPlace) != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

func TestArguments_Parse(t *testing.T) {
	for args, want := range map[string]string{
		"--logfile /a": "/a", "--logfile=/a": "/a", "": "", "--logfile": "", "--logfile a": "", "--logfile /a b": "", "/a": "",
	} {
		if got, err := parse(strings.Fields(args)); got != want || (err == nil) != (want != "") {
			t.Errorf("%q: %q, %v", args, got, err)
		}
	}
}

// TestTail_PrintsRestWhenSignaled: the last line, which has no end, and what was written just before the signal.
func TestTail_PrintsRestWhenSignaled(t *testing.T) {
	path := filepath.Join(t.TempDir(), "virt-serial0-log")
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe", "--logfile", path)
	cmd.Env, cmd.Stderr = append(os.Environ(), inPlace+"=1"), os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	log, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	write(t, log, "booting\r\n")
	first := make([]byte, len("booting\n"))
	if _, err := io.ReadFull(out, first); err != nil || string(first) != "booting\n" {
		t.Fatalf("%q, %v", first, err)
	}
	write(t, log, "one\ntwo\nlogin: ")
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	rest, err := io.ReadAll(out)
	if err := errors.Join(err, cmd.Wait()); err != nil || string(rest) != "one\ntwo\nlogin: \n" {
		t.Errorf("%q, %v", rest, err)
	}
}

func write(t *testing.T, to *os.File, text string) {
	t.Helper()
	if _, err := to.WriteString(text); err != nil {
		t.Fatal(err)
	}
}

func TestTail_Errors(t *testing.T) {
	dir := t.TempDir()
	link := filepath.Join(dir, "link")
	if err := os.Symlink("/etc/passwd", link); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mkfifo(filepath.Join(dir, "pipe"), 0o600); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{link: "symbolic links", filepath.Join(dir, "pipe"): "not a regular file", dir: "not a regular file"} {
		var out bytes.Buffer
		if err := run(t.Context(), []string{"--logfile", path}, &out); err == nil || !strings.Contains(err.Error(), want) || out.Len() > 0 {
			t.Errorf("%s: %v, want one with %q; it prints %q", path, err, want, out.String())
		}
	}
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, []byte("x\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	r, w := io.Pipe()
	_ = r.CloseWithError(io.ErrClosedPipe)
	if err := run(context.Background(), []string{"--logfile", file}, w); !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("without a reader it ends with %v", err)
	}
}
