// SPDX-License-Identifier: Apache-2.0

package mounts_test

import (
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"testing"

	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/mounts"
)

// launched starts a program with an environment, and returns what reaches it once the program runs.
func launched(t *testing.T, env ...string) mounts.Pods {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "cat") // until the end of its input
	cmd.Env = append([]string{}, env...)
	in, inErr := cmd.StdinPipe()
	out, outErr := cmd.StdoutPipe()
	if err := errors.Join(inErr, outErr); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = in.Close()
		_ = cmd.Wait()
	})
	// Until it answers, the environment may be that of the process that has started it.
	_, err := io.WriteString(in, "x")
	if err == nil {
		_, err = io.ReadFull(out, make([]byte, 1))
	}
	if err != nil {
		t.Fatal(err)
	}
	return mounts.Pods{PID: func(*v1.VirtualMachineInstance) (int, error) { return cmd.Process.Pid, nil }}
}

func TestEnvironment_OfLauncher(t *testing.T) {
	p := launched(t, "PCI_RESOURCE_A=0000:65:00.0", "EMPTY=", "TWO=a=b")
	got, err := p.Environment(&v1.VirtualMachineInstance{})
	if err != nil || len(got) != 3 || got["PCI_RESOURCE_A"] != "0000:65:00.0" || got["TWO"] != "a=b" {
		t.Errorf("%q, %v", got, err)
	}
	if got, err := launched(t).Environment(&v1.VirtualMachineInstance{}); !errors.Is(err, domain.ErrNotReady) || got != nil {
		t.Errorf("a process without any: %q, %v", got, err)
	}
	var huge []string
	for i := range 12 {
		huge = append(huge, fmt.Sprintf("V%d=%s", i, strings.Repeat("x", 100_000)))
	}
	if got, err := launched(t, huge...).Environment(&v1.VirtualMachineInstance{}); !errors.Is(err, domain.ErrInvalid) || got != nil {
		t.Errorf("a huge environment: %d variables, %v", len(got), err)
	}
}

func TestEnvironment_LauncherReplaced(t *testing.T) {
	p := launched(t, "A=1")
	pid, _ := p.PID(nil)
	calls := 0
	for name, find := range map[string]func() (int, error){
		"ended":     func() (int, error) { return 1 << 30, nil },
		"unknown":   func() (int, error) { return 0, nil },
		"not there": func() (int, error) { return 0, errors.New("none") },
		"replaced":  func() (int, error) { calls++; return pid + calls - 1, nil },
	} {
		p.PID = func(*v1.VirtualMachineInstance) (int, error) { return find() }
		if got, err := p.Environment(&v1.VirtualMachineInstance{}); !errors.Is(err, domain.ErrNotReady) || got != nil {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
}
