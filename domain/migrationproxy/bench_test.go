// SPDX-License-Identifier: Apache-2.0

package migrationproxy_test

import (
	"io"
	"net"
	"syscall"
	"testing"
	"time"

	"github.com/virtloom/virtloom/domain"
)

// BenchmarkStream sends a stream from a hypervisor to another one in three ways: by the
// proxies over TLS, by the same proxies over plain TCP, and without proxies from a TCP
// socket to another. The ways take turns, so that what else the machine does meets all
// of them. Reported are the rates, the ratios of the one over TLS to the others, and what
// each costs of the CPUs, of which encryption itself is about half a second for each
// gigabyte.
func BenchmarkStream(b *testing.B) {
	const piece = 64 << 20
	open := func(change string) func() time.Duration {
		ca := newAuthority(b)
		source, target := newNode(b, "node-a", ca, modes[change]), newNode(b, "node-b", ca, modes[change])
		target.hypervisor(domain.ChannelMemory, func(c *net.UnixConn) { confirm(c, piece) })
		return sender(dial(b, connect(b, source, target).MigrateURI), piece)
	}
	ways := map[string]func() time.Duration{"tls": open("TLS"), "plain": open("plain"), "raw": sender(rawTCP(b, piece), piece)}
	took, spent := map[string]time.Duration{}, map[string]time.Duration{}
	b.SetBytes(piece)
	b.ResetTimer()
	b.StopTimer()
	for range b.N {
		for name, send := range ways {
			if name == "tls" {
				b.StartTimer()
			}
			before := cpuTime()
			took[name] += send()
			spent[name] += cpuTime() - before
			b.StopTimer()
		}
	}
	b.ReportMetric(took["plain"].Seconds()/took["tls"].Seconds(), "of-plain-relay")
	b.ReportMetric(took["raw"].Seconds()/took["tls"].Seconds(), "of-raw-tcp")
	for name, d := range took {
		b.ReportMetric(piece*float64(b.N)/d.Seconds()/1e6, name+"-MB/s")
		b.ReportMetric(spent[name].Seconds()*1e9/(piece*float64(b.N)), name+"-cpu-s/GB")
	}
}

// cpuTime is what this process has used of the machine's CPUs so far, the kernel's work
// for it included.
func cpuTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// confirm answers with a byte to each piece.
func confirm(c net.Conn, piece int64) {
	buf := make([]byte, 1<<20)
	for {
		for left := piece; left > 0; {
			n, err := c.Read(buf[:min(left, int64(len(buf)))])
			if err != nil {
				return
			}
			left -= int64(n)
		}
		if _, err := c.Write([]byte{1}); err != nil {
			return
		}
	}
}

// sender sends a piece and returns how long it took until it was confirmed.
func sender(c net.Conn, piece int) func() time.Duration {
	buf, ack := make([]byte, 1<<20), make([]byte, 1)
	return func() time.Duration {
		began := time.Now()
		for range piece / len(buf) {
			if _, err := c.Write(buf); err != nil {
				panic(err)
			}
		}
		if _, err := io.ReadFull(c, ack); err != nil {
			panic(err)
		}
		return time.Since(began)
	}
}

func rawTCP(b *testing.B, piece int64) net.Conn {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { l.Close() })
	go func() {
		if c, err := l.Accept(); err == nil {
			defer c.Close()
			confirm(c, piece)
		}
	}()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { c.Close() })
	return c
}
