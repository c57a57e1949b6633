// SPDX-License-Identifier: Apache-2.0

package network_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/virtloom/virtloom/domain/network/dhcp"
	"github.com/virtloom/virtloom/internal/rig"
)

// launcherRole makes the test binary a launcher that serves DHCP.
const launcherRole = "VIRTLOOM_TEST_LAUNCHER"

// tunForAll runs a program where every user may open /dev/net/tun, as on nodes and in Pods.
const tunForAll = `mount -t tmpfs -o mode=755 dev /dev/net && mknod -m 666 /dev/net/tun c 10 200 && exec "$@"`

func TestMain(m *testing.M) {
	if os.Getenv(launcherRole) == "" {
		os.Exit(m.Run())
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	dhcp.Serve(ctx, dhcp.Options{HostName: "web"})
}

// A guest of QEMU, which runs as the launcher's user without any capability, gets its address, and
// answers at the address of the Pod.
func TestPods_RealGuest(t *testing.T) {
	w := newWorld(t, false)
	image, err := rig.FindGuestImage()
	if err != nil {
		t.Fatalf("%v: run make setup", err)
	}
	run := func(cmd *exec.Cmd) {
		t.Helper()
		cmd.Stderr = os.Stderr
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	}
	enter := []string{"-t", fmt.Sprint(w.pod.pid), "-n"}
	// It is there before the network is, as in a Pod.
	server := exec.CommandContext(t.Context(), "nsenter", append(enter, "/proc/self/fd/3")...)
	self, err := os.Open("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	defer self.Close()
	server.ExtraFiles, server.Env = []*os.File{self}, append(os.Environ(), launcherRole+"=1")
	run(server)
	if _, err := w.pods().Prepare(t.Context(), masquerade(80)); err != nil {
		t.Fatal(err)
	}
	guest := exec.CommandContext(t.Context(), "nsenter", append(enter,
		"unshare", "--mount", "sh", "-c", tunForAll, "sh",
		"setpriv", "--reuid", "107", "--regid", "107", "--clear-groups", "--inh-caps=-all", "--bounding-set=-all", "--no-new-privs",
		"qemu-system-x86_64", "-accel", "tcg", "-machine", "q35", "-cpu", "qemu64", "-m", "96", "-nodefaults", "-display", "none", "-serial", "stdio",
		"-kernel", "/dev/fd/3", "-initrd", "/dev/fd/4", "-append", "console=ttyS0 quiet no_timer_check dhcp=1 serve=80",
		"-netdev", "tap,id=n,ifname=tap0,script=no,downscript=no", "-device", "virtio-net-pci,netdev=n,mac="+guestMAC)...)
	for _, path := range []string{image.Kernel, image.Initrd} {
		f, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		guest.ExtraFiles = append(guest.ExtraFiles, f)
	}
	console, err := guest.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	run(guest)
	ready := false
	for lines := bufio.NewScanner(console); !ready && lines.Scan(); {
		t.Log(lines.Text())
		ready = strings.Contains(lines.Text(), "virtloom-net eth0 mac="+guestMAC+" ip="+guestIPv4+"/24")
	}
	if !ready {
		t.Fatal("the guest has ended without an address")
	}
	go func() { _, _ = io.Copy(io.Discard, console) }()
	client := http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, n, address string) (c net.Conn, err error) {
		w.client.inside(func() error {
			c, err = (&net.Dialer{Timeout: 20 * time.Second}).DialContext(ctx, n, address)
			return nil
		})
		return c, err
	}}}
	answer, err := client.Get("http://" + podIPv4 + "/")
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err != nil || !strings.HasPrefix(string(body), "host=web uptime=") {
		t.Errorf("%s, %v", body, err)
	}
}
