// SPDX-License-Identifier: Apache-2.0

package rig

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// binVariable names the environment variable with the folder of the programs.
const binVariable = "VIRTLOOM_BIN"

// ErrNoPrograms means that a program the rig needs is not there. Its remedy is "make setup".
var ErrNoPrograms = errors.New("programs of the rig are missing: run \"make setup\"")

// programs of the control plane.
var programs = []string{"etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kwok"}

// BinDir is the folder that "make setup" fills: the one named by the environment variable
// VIRTLOOM_BIN, or else bin in the root of this module, looked for from the working directory
// upwards. It does not check what is in it.
func BinDir() (string, error) {
	if dir := os.Getenv(binVariable); dir != "" {
		return filepath.Abs(dir)
	}
	dir, err := os.Getwd()
	if err != nil {
		return "", fmt.Errorf("find the folder of programs: %w", err)
	}
	for start := dir; ; dir = filepath.Dir(dir) {
		mod, err := os.ReadFile(filepath.Join(dir, "go.mod"))
		if err == nil && bytes.HasPrefix(mod, []byte("module github.com/virtloom/virtloom\n")) {
			return filepath.Join(dir, "bin"), nil
		}
		if dir == filepath.Dir(dir) {
			return "", fmt.Errorf("%w (%s is not set, and %s is not within the module)", ErrNoPrograms, binVariable, start)
		}
	}
}

// FindPrograms is BinDir, once it is known that the programs of the control plane are there; else it returns ErrNoPrograms.
func FindPrograms() (string, error) {
	dir, err := BinDir()
	if err != nil {
		return "", err
	}
	var missing []string
	for _, name := range programs {
		if info, err := os.Stat(filepath.Join(dir, name)); err != nil || info.Mode()&0o111 == 0 {
			missing = append(missing, name)
		}
	}
	if len(missing) > 0 {
		return "", fmt.Errorf("%w (no %s in %s)", ErrNoPrograms, strings.Join(missing, ", "), dir)
	}
	return dir, nil
}

// findEmulators is the folder that hack/emulators.sh fills, once it is known that it has done so.
func findEmulators() (string, error) {
	bin, err := BinDir()
	if err != nil {
		return "", err
	}
	dir := filepath.Join(bin, "emulators")
	// The stamp is written last.
	if _, err := os.Stat(filepath.Join(dir, "stamp")); err != nil {
		return "", fmt.Errorf("%w (no emulators: %w)", ErrNoPrograms, err)
	}
	// It is mounted over, which follows no link on the way.
	return filepath.EvalSymlinks(dir)
}
