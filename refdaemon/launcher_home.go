// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// qemuConf is the configuration of libvirt's QEMU driver in a Pod, which confines QEMU already. The agent gives files their
// owners. QEMU writes its logs by itself: through virtlogd they would be lost when that dies, as QEMU's end of the pipe
// cannot be given to another one. The daemons at the two ends of a migration ask each other whether they are there; with
// libvirt's defaults both give up after half a minute without an answer, which a migration outlives otherwise.
var qemuConf = []string{
	"dynamic_ownership = 0", "remember_owner = 0", "namespaces = []", "cgroup_controllers = []", `security_driver = "none"`, `stdio_handler = "file"`,
	"keepalive_interval = 5", "keepalive_count = 12",
}

// home prepares the folders of the guest and, in session mode, of libvirt, which reads its configuration there.
func (o *launcherOptions) home() error {
	if err := os.MkdirAll(o.guestDir(), 0o755); err != nil {
		return err
	}
	if !o.session() {
		return nil
	}
	// KubeVirt's Pods set these, but for HOME and the folder of data.
	for name, dir := range map[string]string{
		"HOME": o.privateDir, "XDG_CONFIG_HOME": o.privateDir, "XDG_CACHE_HOME": o.privateDir, "XDG_DATA_HOME": o.privateDir, "XDG_RUNTIME_DIR": "/var/run",
	} {
		if err := os.Setenv(name, cmp.Or(os.Getenv(name), dir)); err != nil {
			return err
		}
	}
	// Neither the launcher nor a libvirtd that a guest moves to another may start one more daemon.
	if err := os.Setenv("LIBVIRT_AUTOSTART", "0"); err != nil {
		return err
	}
	return configure(filepath.Join(os.Getenv("XDG_CONFIG_HOME"), "libvirt", "qemu.conf"), qemuConf)
}

// configure writes a configuration file.
func configure(path string, lines []string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(path, []byte(strings.Join(lines, "\n")+"\n"), 0o600); err != nil {
		return fmt.Errorf("configure libvirt: %w", err)
	}
	return nil
}
