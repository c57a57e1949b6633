// SPDX-License-Identifier: Apache-2.0

package migrationproxy_test

import (
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/go-logr/logr"

	"github.com/virtloom/virtloom/domain/migrationproxy"
	"github.com/virtloom/virtloom/domain/transport"
)

func TestCertificates_RotateDuringStream(t *testing.T) {
	first, second := newAuthority(t), newAuthority(t)
	source, target := newNode(t, "node-a", first), newNode(t, "node-b", first)
	target.hypervisor(transport.ChannelControl, echo)
	route := connect(t, source, target)
	old := dial(t, route.DestinationURI)
	says := func(text string) {
		t.Helper()
		if _, err := io.WriteString(old, text); err != nil {
			t.Fatal(err)
		}
		got := make([]byte, len(text))
		if _, err := io.ReadFull(old, got); err != nil || string(got) != text {
			t.Fatalf("the old stream brought %q, error %v", got, err)
		}
	}
	says("before")
	second.write(target.dir, leaf("node-b"), second)
	says("while only one node has new certificates")
	if got, err := io.ReadAll(dial(t, route.DestinationURI)); len(got) != 0 {
		t.Errorf("a stream between two CAs brought %q, error %v", got, err)
	}
	second.write(source.dir, leaf("node-a"), second)
	roundTrip(t, dial(t, route.DestinationURI), "a new stream")
	says("after")
	roundTrip(t, old, "and it ends in order")
}

func TestCertificates_InvalidFilesKeepPrevious(t *testing.T) {
	for name, tc := range map[string]struct {
		file, content string
		want          string
	}{
		"no PEM":                {file: "tls.crt", content: "nonsense", want: "tls.crt"},
		"an empty CA":           {file: "ca.crt", want: "no certificate in the file"},
		"a key of another pair": {file: "tls.key", content: otherKey, want: "tls.key"},
		"a file is missing":     {file: "tls.key", want: "no such file"},
	} {
		t.Run(name, func(t *testing.T) {
			ca := newAuthority(t)
			source, target := newNode(t, "node-a", ca), newNode(t, "node-b", ca)
			target.hypervisor(transport.ChannelControl, echo)
			files := source.options.Certificates.(*migrationproxy.Files)
			path := filepath.Join(source.dir, tc.file)
			good, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			switch {
			case name == "a file is missing":
				os.Remove(path)
			case tc.content == otherKey:
				dir := t.TempDir()
				ca.write(dir, leaf("node-a"), ca)
				other, err := os.ReadFile(filepath.Join(dir, "tls.key"))
				if err != nil {
					t.Fatal(err)
				}
				writeFile(t, path, other)
			default:
				writeFile(t, path, []byte(tc.content))
			}
			if err := files.Problem(); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("problem %v, want one about %q", err, tc.want)
			}
			route := connect(t, source, target)
			roundTrip(t, dial(t, route.DestinationURI), "with the old ones")
			writeFile(t, path, good)
			if err := files.Problem(); err != nil {
				t.Errorf("problem %v after the files were repaired", err)
			}
			roundTrip(t, dial(t, route.DestinationURI), "with the new ones")
		})
	}
}

const otherKey = "the key of another pair"

func TestCertificates_FilesAppearLater(t *testing.T) {
	ca, dir := newAuthority(t), t.TempDir()
	f, err := migrationproxy.ReadFiles(filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key"), filepath.Join(dir, "ca.crt"), logr.Logger{})
	if err == nil || !strings.Contains(err.Error(), "tls.crt") {
		t.Fatalf("error %v, want one that names the file", err)
	}
	if _, _, err := f.Current(); err == nil {
		t.Error("there are certificates without files")
	}
	source, target := newNode(t, "node-a", ca, func(o *migrationproxy.Options) { o.Certificates = f }), newNode(t, "node-b", ca)
	target.hypervisor(transport.ChannelControl, func(c *net.UnixConn) { echo(c) })
	route := connect(t, source, target)
	if got, err := io.ReadAll(dial(t, route.DestinationURI)); len(got) != 0 {
		t.Errorf("without certificates a stream brought %q, error %v", got, err)
	}
	ca.write(dir, leaf("node-a"), ca)
	roundTrip(t, dial(t, route.DestinationURI), "now they are there")
}
