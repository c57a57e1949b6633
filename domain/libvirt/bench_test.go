// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package libvirt_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"math/big"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/convert"
	"github.com/virtloom/virtloom/domain/libvirt"
	"github.com/virtloom/virtloom/domain/migrate"
	"github.com/virtloom/virtloom/domain/migrationproxy"
	"github.com/virtloom/virtloom/domain/transport"
)

// pair is a certificate that two nodes share.
type pair struct {
	own   tls.Certificate
	roots *x509.CertPool
}

func (p pair) Current() (tls.Certificate, *x509.CertPool, error) { return p.own, p.roots, nil }

func newPair(b *testing.B) pair {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		b.Fatal(err)
	}
	c := &x509.Certificate{
		SerialNumber: big.NewInt(1), DNSNames: []string{"node1", "node2"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
	}
	der, err := x509.CreateCertificate(rand.Reader, c, c, &key.PublicKey, key)
	if err != nil {
		b.Fatal(err)
	}
	p := pair{own: tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, roots: x509.NewCertPool()}
	if c, err = x509.ParseCertificate(der); err != nil {
		b.Fatal(err)
	}
	p.roots.AddCert(c)
	return p
}

// traveller is a guest that migrates back and forth.
type traveller struct {
	*testing.B
	ns      *nodes
	drivers [2]*libvirt.Driver
	proxies [2]*migrationproxy.Proxy
	name    string
	at      int
}

// proxied migrates the guest through the proxies as two agents would, which is on eight connections
// (KubeVirt's default).
func (g *traveller) proxied() {
	from, to := g.at, 1-g.at
	p := transport.Tunnel{Key: "bench", Migration: "bench", Domain: g.name}
	p.Peer = g.ns.n[from].Name()
	at, err := g.proxies[to].Listen(g.Context(), p)
	if err != nil {
		g.Fatal(err)
	}
	defer g.proxies[to].Close(p.Key)
	p.Peer = g.ns.n[to].Name()
	route, err := g.proxies[from].Dial(g.Context(), p, at)
	if err != nil {
		g.Fatal(err)
	}
	defer g.proxies[from].Close(p.Key)
	if err := g.drivers[from].Migrate(g.Context(), domain.MigrationRequest{
		Domain: g.name, DestinationURI: route.DestinationURI, MigrateURI: route.MigrateURI, MaxDowntime: migrate.DefaultMaxDowntime, Parallel: 8,
	}); err != nil {
		g.Fatal(err)
	}
}

// virsh migrates the guest by libvirt alone, over unprotected TCP.
func (g *traveller) virsh() {
	if _, err := g.ns.n[g.at].Virsh(g.Context(), "migrate", "--live", "--p2p", "--persistent", g.name, "qemu+tcp://"+g.ns.n[1-g.at].Address()+"/system"); err != nil {
		g.Fatal(err)
	}
}

// move measures the time of a migration, and reads its downtime from libvirt.
func (g *traveller) move(by func()) (took, downtime, cpu time.Duration) {
	before, began := cpuTime(g.B), time.Now()
	by()
	took, cpu = time.Since(began), cpuTime(g.B)-before
	stats, err := g.ns.n[g.at].Virsh(g.Context(), "domjobinfo", g.name, "--completed", "--rawstats")
	if err != nil {
		g.Fatal(err)
	}
	for line := range strings.Lines(stats) {
		if name, value, _ := strings.Cut(strings.TrimSpace(line), ":"); name == "downtime" {
			ms, err := strconv.Atoi(strings.TrimSpace(value))
			if err != nil {
				g.Fatal(err)
			}
			downtime = time.Duration(ms) * time.Millisecond
		}
	}
	if err := g.drivers[g.at].Apply(g.Context(), domain.Operation{Verb: domain.Undefine, Domain: g.name}); err != nil {
		g.Fatal(err)
	}
	g.at = 1 - g.at
	return took, downtime, cpu
}

// cpuTime is the CPU time of this process, in which the proxies are.
func cpuTime(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkMigration migrates a guest of 1 GiB, half of which has random content, alternately
// through the proxies over TLS and by virsh alone over plain TCP, each in both directions. The time
// must be at most 1.15 times that of virsh.
func BenchmarkMigration(b *testing.B) {
	ns := startNodes(b)
	certificates := newPair(b)
	g := &traveller{B: b, ns: ns}
	for i, n := range ns.n {
		g.drivers[i] = ns.open(b, n)
		var err error
		g.proxies[i], err = migrationproxy.NewProxy(migrationproxy.Options{
			Address: "127.0.0.1", NodeName: n.Name(), Certificates: certificates, InsecureSharedHypervisor: true,
			Sockets: func(ctx context.Context, name string) (domain.Sockets, error) {
				return g.drivers[i].MigrationSockets(ctx, name)
			},
		})
		if err != nil {
			b.Fatal(err)
		}
	}
	vmi, f := guest("bench"), ns.facts(b, "bench")
	memory := resource.MustParse("1Gi")
	vmi.Spec.Domain.Memory.Guest = &memory
	vmi.Spec.Domain.Firmware.KernelBoot.KernelArgs += " dirty=512,5"
	d, err := convert.Convert(vmi, f)
	if err != nil {
		b.Fatal(err)
	}
	g.name = d.Name
	b.Cleanup(func() { destroy(b, d.Name, g.drivers[:]...) })
	if err := g.drivers[0].Apply(b.Context(), domain.Operation{Verb: domain.Start, Domain: d.Name, Definition: d}); err != nil {
		b.Fatal(err)
	}
	await(b, "a heartbeat", func() bool { return len(beats(serial(b, ns.n[0], f))) > 3 })
	var took, downtime, cpu [2]time.Duration
	ways := [2]func(){g.proxied, g.virsh}
	for range 2 { // meanwhile the guest fills its memory, and the files of QEMU are read
		g.move(g.virsh)
	}
	b.ResetTimer()
	for i := range 4 * b.N { // proxied first, then virsh first: each way once in each direction
		way := (i + i/2) % 2
		t, d, c := g.move(ways[way])
		b.Logf("%s: %v, downtime %v", []string{"proxied", "virsh"}[way], t, d)
		took[way] += t
		downtime[way] = max(downtime[way], d)
		cpu[way] += c
	}
	b.ReportMetric(took[0].Seconds()/took[1].Seconds(), "time-of-virsh")
	b.ReportMetric(took[0].Seconds()/float64(2*b.N), "s/move")
	b.ReportMetric(took[1].Seconds()/float64(2*b.N), "virsh-s/move")
	b.ReportMetric(float64(downtime[0].Milliseconds()), "most-downtime-ms")
	b.ReportMetric(float64(downtime[1].Milliseconds()), "virsh-most-downtime-ms")
	b.ReportMetric(cpu[0].Seconds()/float64(2*b.N), "proxies-cpu-s/move")
	for i, d := range downtime {
		if d > migrate.DefaultMaxDowntime && i == 0 {
			b.Errorf("the guest stood still for %v, and may for %v", d, migrate.DefaultMaxDowntime)
		}
	}
}
