// SPDX-License-Identifier: Apache-2.0

package mounts

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/domain"
)

// maxEnvironment bounds what is read of a process's environment.
const maxEnvironment = 1 << 20

// Environment returns the environment variables of the VMI's launcher, as its process shows them: those
// that its container was started with, unless a process of the container has changed them.
func (p Pods) Environment(vmi *v1.VirtualMachineInstance) (map[string]string, error) {
	pid, err := process(vmi, p.PID)
	if err != nil {
		return nil, fmt.Errorf("mounts: environment of VMI %s: %w", vmi.UID, err)
	}
	text, err := environ(pid)
	if err != nil {
		return nil, fmt.Errorf("mounts: environment of VMI %s: %w", vmi.UID, err)
	}
	// The process may have ended before, and its PID may be another one's.
	if again, err := process(vmi, p.PID); err != nil || again != pid {
		return nil, fmt.Errorf("mounts: environment of VMI %s: its launcher has been replaced: %w", vmi.UID, domain.ErrNotReady)
	}
	out := map[string]string{}
	for entry := range strings.SplitSeq(text, "\x00") {
		name, value, is := strings.Cut(entry, "=")
		if _, there := out[name]; is && !there { // as for getenv, the first counts
			out[name] = value
		}
	}
	return out, nil
}

// environ reads the environment of a process.
func environ(pid int) (string, error) {
	f, err := os.Open(filepath.Join("/proc", strconv.Itoa(pid), "environ"))
	if err != nil {
		return "", fmt.Errorf("%w: %w", domain.ErrNotReady, err)
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxEnvironment+1))
	switch {
	case err != nil:
		return "", fmt.Errorf("%w: %w", domain.ErrNotReady, err)
	case len(text) > maxEnvironment:
		return "", fmt.Errorf("it has more than %d bytes: %w", maxEnvironment, domain.ErrInvalid)
	case len(text) == 0: // no container is without one, but a process that is about to run its program, or has ended, is
		return "", fmt.Errorf("it is empty: %w", domain.ErrNotReady)
	}
	return string(text), nil
}
