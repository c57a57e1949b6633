// SPDX-License-Identifier: Apache-2.0

package deviceplugin_test

import (
	"context"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/virtloom/virtloom/domain/deviceplugin"
)

// device creates a device node without a driver.
func device(t *testing.T, path string) {
	t.Helper()
	if testing.Short() {
		t.Skip("needs root: run it without -short")
	}
	if err := unix.Mknod(path, unix.S_IFCHR|0o600, int(unix.Mkdev(1, 3))); err != nil {
		t.Fatalf("device nodes cannot be made; run the tests as root: %v", err)
	}
}

// start runs a plugin until the end of the test, or until end is called, which returns the result
// of Start.
func start(t *testing.T, p interface{ Start(context.Context) error }) (end func() error) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- p.Start(ctx) }()
	end = sync.OnceValue(func() error { cancel(); return <-done })
	t.Cleanup(func() { _ = end() })
	return end
}

func kvm(root, folder string, slots int) *deviceplugin.Plugin {
	return &deviceplugin.Plugin{Device: deviceplugin.KVM(slots), Folder: folder, Root: root}
}

func mknod(path string, major uint32) error {
	return unix.Mknod(path, unix.S_IFCHR|0o600, int(unix.Mkdev(major, 0)))
}
