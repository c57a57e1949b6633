// SPDX-License-Identifier: Apache-2.0

package workspace_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/virtloom/virtloom/domain/internal/domainfixture"
	"github.com/virtloom/virtloom/domain/workspace"
)

func TestWorkspaceLock_OneAgent(t *testing.T) {
	w := &workspace.Workspace{Root: filepath.Join(t.TempDir(), "state")}
	unlock, err := w.Lock(t.Context())
	domainfixture.Must(t, err)
	given, cancel := context.WithCancel(t.Context())
	cancel()
	second := &workspace.Workspace{Root: w.Root}
	_, err = second.Lock(given)
	domainfixture.Says(t, err, "another agent", fmt.Sprintf("process %d", os.Getpid()), w.Root)
	if !errors.Is(err, context.Canceled) {
		t.Errorf("error %v, want why it waits no longer", err)
	}
	waited := make(chan error, 1)
	go func() {
		unlock, err := second.Lock(context.WithoutCancel(given))
		if err == nil {
			err = unlock()
		}
		waited <- err
	}()
	domainfixture.Must(t, unlock())
	domainfixture.Must(t, <-waited)
}

func TestWorkspaceLock_Fails(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	domainfixture.Must(t, os.WriteFile(file, nil, 0o600))
	for name, root := range map[string]string{
		"its root cannot be made":  filepath.Join(file, "state"),
		"its lock is no such file": lockIsADirectory(t),
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := (&workspace.Workspace{Root: root}).Lock(t.Context()); err == nil {
				t.Error("it was locked")
			}
		})
	}
}

func lockIsADirectory(t *testing.T) string {
	t.Helper()
	root := t.TempDir()
	domainfixture.Must(t, os.Mkdir(filepath.Join(root, "agent.lock"), 0o700))
	return root
}
