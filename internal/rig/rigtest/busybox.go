// SPDX-License-Identifier: Apache-2.0

package rigtest

import (
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/virtloom/virtloom/internal/rig"
)

// Busybox is the image of Pods that need a shell; see LoadBusybox.
const Busybox = "localhost/virtloom-busybox:dev"

// applets are the programs that the image has in /bin.
var applets = []string{"cat", "echo", "false", "hostname", "httpd", "id", "ls", "mkdir", "mount", "nc", "ping", "sh", "sleep", "test", "timeout", "true", "wget"}

// LoadBusybox gives nodes the image Busybox, made of the machine's busybox-static.
func LoadBusybox(t testing.TB, nodes ...*rig.KubeletNode) {
	t.Helper()
	program, err := exec.LookPath("busybox")
	if err != nil {
		t.Fatal(err)
	}
	image := rig.Image{
		Name: Busybox, Entrypoint: []string{"/bin/sh"},
		Files: map[string]string{"/bin/busybox": program}, Links: map[string]string{},
	}
	for _, name := range applets {
		image.Links["/bin/"+name] = "busybox"
	}
	archive := filepath.Join(t.TempDir(), "busybox.tar")
	if err := rig.WriteImage(archive, image); err != nil {
		t.Fatal(err)
	}
	for _, n := range nodes {
		if err := n.LoadImages(t.Context(), archive); err != nil {
			t.Fatal(err)
		}
	}
}
