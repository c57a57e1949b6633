// SPDX-License-Identifier: Apache-2.0

package rig_test

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/virtloom/virtloom/internal/rig"
	"github.com/virtloom/virtloom/internal/rig/rigtest"
)

func TestKubeconfig_CableCut(t *testing.T) {
	startFabric(t, "") // skips without root
	r := rigtest.New(t)
	n, err := r.AddHypervisorNode(t.Context(), "reached")
	if err != nil {
		t.Fatal(err)
	}
	f, err := r.Fabric(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Cut(t.Context(), n); err != nil {
		t.Fatal(err)
	}
	bin, err := rig.BinDir()
	if err != nil {
		t.Fatal(err)
	}
	out, err := n.Command(t.Context(), filepath.Join(bin, "kubectl"), "--kubeconfig", r.Kubeconfig(rig.UserAdmin),
		"get", "node", n.Name(), "-o", "name").CombinedOutput()
	if got := strings.TrimSpace(string(out)); err != nil || got != "node/reached" {
		t.Errorf("kubectl on the node says %q: %v", got, err)
	}
	// Nothing of it is left in the way of a node that takes its place.
	if err := n.Stop(t.Context()); err != nil {
		t.Error(err)
	}
}

// ping reports whether a packet gets from one node to another and back.
func ping(ctx context.Context, from, to *rig.HypervisorNode) error {
	_, err := from.Command(ctx, "busybox", "ping", "-c", "1", "-W", "1", to.Address()).Output()
	return err
}

func TestCable_CutAndRestore(t *testing.T) {
	f := startFabric(t, "")
	a, b := addNode(t, f, "cut-a"), addNode(t, f, "cut-b")
	if err := ping(t.Context(), a, b); err != nil {
		t.Fatalf("nodes do not reach each other: %v", err)
	}
	for _, n := range []*rig.HypervisorNode{a, b} {
		if err := f.Cut(t.Context(), n); err != nil {
			t.Fatal(err)
		}
		if err := ping(t.Context(), a, b); err == nil {
			t.Errorf("a packet got through the cut cable of %s", n.Name())
		}
		if err := f.Mend(t.Context(), n); err != nil {
			t.Fatal(err)
		}
		waitFor(t, "the mended cable carries nothing", func() bool { return ping(t.Context(), a, b) == nil })
	}
}

func TestDial_NodeNetwork(t *testing.T) {
	f := startFabric(t, "")
	n := addNode(t, f, "dialled")
	_, err := n.Run("listener", exec.Command("busybox", "nc", "-ll", "-p", "4711", "-e", "hostname"))
	if err != nil {
		t.Fatal(err)
	}
	var got string
	waitFor(t, "nobody listens", func() bool {
		c, err := n.Dial(t.Context(), "tcp", "127.0.0.1:4711")
		if err != nil {
			return false
		}
		defer c.Close()
		_, err = fmt.Fscan(c, &got)
		return err == nil
	})
	if got != "dialled" {
		t.Errorf("%q answers", got)
	}
}

func TestLibvirtd_NoNetworkByDefault(t *testing.T) {
	for name, tcp := range map[string]bool{"default": false, "TCP": true} {
		t.Run(name, func(t *testing.T) {
			f := startFabricWith(t, rig.FabricOptions{TCP: tcp, Log: t.Logf})
			n := addNode(t, f, "listening")
			// The column of the state is 0A for a socket that listens, that of the address ends with the port.
			out, err := n.Command(t.Context(), "cat", "/proc/net/tcp", "/proc/net/tcp6").Output()
			if err != nil {
				t.Fatal(err)
			}
			got := strings.Count(string(out), ":407D 00000000:0000 0A")
			if want := map[bool]int{true: 1}[tcp]; got != want {
				t.Errorf("%d sockets listen at port 16509, want %d:\n%s", got, want, out)
			}
			if listening := strings.Count(string(out), " 0A "); !tcp && listening > 0 {
				t.Errorf("%d sockets listen, want none:\n%s", listening, out)
			}
		})
	}
}

func TestCredentials_NodeName(t *testing.T) {
	f := startFabric(t, "")
	var serials []string
	for _, name := range []string{"proof-a", "proof-b"} {
		n := addNode(t, f, name)
		c, err := n.Credentials()
		if err != nil {
			t.Fatal(err)
		}
		cert := verified(t, c)
		if diff := cmp.Diff([]string{name}, cert.DNSNames); diff != "" {
			t.Errorf("names (-want +got):\n%s", diff)
		}
		serials = append(serials, cert.SerialNumber.String())
		again, err := n.Credentials()
		if err != nil || again != c || verified(t, c).SerialNumber.Cmp(cert.SerialNumber) != 0 {
			t.Errorf("asked again, the node has other credentials %v: %v", again, err)
		}
	}
	for i, s := range serials {
		for _, other := range serials[:i] {
			if s == other {
				t.Errorf("two certificates have serial number %s", s)
			}
		}
	}
}

// verified reads a certificate that its authority has issued for both ends.
func verified(t *testing.T, c rig.Credentials) *x509.Certificate {
	t.Helper()
	read := func(path string) []byte {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	roots := x509.NewCertPool()
	block, _ := pem.Decode(read(c.Cert))
	if !roots.AppendCertsFromPEM(read(c.CA)) || block == nil || len(read(c.Key)) == 0 {
		t.Fatalf("no PEM in %+v", c)
	}
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	for _, usage := range []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth} {
		if _, err := cert.Verify(x509.VerifyOptions{Roots: roots, KeyUsages: []x509.ExtKeyUsage{usage}}); err != nil {
			t.Error(err)
		}
	}
	return cert
}
