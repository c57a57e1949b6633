// SPDX-License-Identifier: Apache-2.0

package migrationproxy_test

import (
	"crypto/aes"
	"crypto/cipher"
	"fmt"
	"io"
	"net"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/virtloom/virtloom/domain/transport"
)

// BenchmarkStream sends streams from one hypervisor to another in three ways: by the proxies over
// TLS, by the same proxies over plain TCP, and without proxies over TCP sockets. The ways
// alternate, so that the machine's other load affects all of them. It reports the rates, the ratios
// of the rate over TLS to the others, and the CPU time of each: hypervisors and proxies of both
// nodes are in this process, and share its CPUs, which matters more with few CPUs than on two
// machines. A stream over TLS costs at least one over plain TCP and its encryption at both ends
// (aes); of-bound is how near it comes to that.
func BenchmarkStream(b *testing.B) {
	for _, streams := range []int{1, 4} {
		b.Run(fmt.Sprint("streams=", streams), func(b *testing.B) { benchmarkStreams(b, streams) })
	}
}

func benchmarkStreams(b *testing.B, streams int) {
	piece := 64 << 20 / streams
	open := func(change string) func() {
		ca := newAuthority(b)
		source, target := newNode(b, "node-a", ca, modes[change]), newNode(b, "node-b", ca, modes[change])
		target.hypervisor(transport.ChannelMemory, func(c *net.UnixConn) { confirm(c, int64(piece)) })
		uri := connect(b, source, target).MigrateURI
		return senders(streams, piece, func() net.Conn { return dial(b, uri) })
	}
	ways := map[string]func(){
		"tls": open("TLS"), "plain": open("plain"), "aes": seals(b, streams*piece),
		"raw": senders(streams, piece, func() net.Conn { return rawTCP(b, int64(piece)) }),
	}
	took, spent := map[string]float64{}, map[string]float64{}
	b.SetBytes(int64(streams * piece))
	b.ResetTimer()
	b.StopTimer()
	for range b.N {
		for name, send := range ways {
			if name == "tls" {
				b.StartTimer()
			}
			began, before := time.Now(), cpuTime()
			send()
			took[name] += time.Since(began).Seconds()
			spent[name] += (cpuTime() - before).Seconds()
			b.StopTimer()
		}
	}
	sent := float64(b.N*streams*piece) / 1e6
	b.ReportMetric(took["plain"]/took["tls"], "of-plain-relay")
	b.ReportMetric(took["raw"]/took["tls"], "of-raw-tcp")
	b.ReportMetric((spent["plain"]+spent["aes"])/spent["tls"], "of-bound")
	for name := range ways {
		if name != "aes" {
			b.ReportMetric(sent/took[name], name+"-MB/s")
		}
		b.ReportMetric(spent[name]*1e3/sent, name+"-cpu-s/GB")
	}
}

// seals encrypts and decrypts so many bytes, as the two ends of TLS do.
func seals(b *testing.B, size int) func() {
	block, err := aes.NewCipher(make([]byte, 16))
	if err != nil {
		b.Fatal(err)
	}
	gcm, err := cipher.NewGCM(block)
	if err != nil {
		b.Fatal(err)
	}
	const record = 16 << 10
	text, nonce := make([]byte, record, record+gcm.Overhead()), make([]byte, gcm.NonceSize())
	return func() {
		for range size / record {
			if text, err = gcm.Open(text[:0], nonce, gcm.Seal(text[:0], nonce, text, nil), nil); err != nil {
				panic(err)
			}
		}
	}
}

// cpuTime is the CPU time of this process so far, including the kernel's.
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

// senders sends a piece on each of the streams, and waits until all are confirmed.
func senders(streams, piece int, dial func() net.Conn) func() {
	var all []net.Conn
	for range streams {
		all = append(all, dial())
	}
	buf := make([]byte, 1<<20)
	return func() {
		var sent sync.WaitGroup
		for _, c := range all {
			sent.Go(func() { send(c, piece, buf) })
		}
		sent.Wait()
	}
}

func send(c net.Conn, piece int, buf []byte) {
	for range piece / len(buf) {
		if _, err := c.Write(buf); err != nil {
			panic(err)
		}
	}
	if _, err := io.ReadFull(c, make([]byte, 1)); err != nil {
		panic(err)
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
