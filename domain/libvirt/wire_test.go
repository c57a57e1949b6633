// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package libvirt_test

import (
	"encoding/binary"
	"fmt"
	"io"
	"maps"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/libvirt"
)

// remoteProgram is the number of libvirt's calls on the wire (REMOTE_PROGRAM); those of keepalive
// have another.
const remoteProgram = 0x20008086

// wire forwards the calls of clients to a daemon and counts them.
type wire struct {
	t      *testing.T
	daemon string

	mu    sync.Mutex
	calls map[uint32]int // by number of the procedure
}

// tap returns the socket of a wire to the daemon behind uri.
func tap(t *testing.T, uri string) (*wire, string) {
	t.Helper()
	_, daemon, _ := strings.Cut(uri, "socket=")
	w := &wire{t: t, daemon: daemon, calls: map[uint32]int{}}
	socket := filepath.Join(t.TempDir(), "tap")
	l, err := new(net.ListenConfig).Listen(t.Context(), "unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			serving.Go(func() { w.serve(client) })
		}
	})
	t.Cleanup(func() {
		l.Close()
		serving.Wait()
	})
	return w, socket
}

// serve carries one connection until either side ends it.
func (w *wire) serve(client net.Conn) {
	daemon, err := new(net.Dialer).DialContext(contextWithoutEnd(w.t), "unix", w.daemon)
	if err != nil {
		w.t.Errorf("no way to the daemon: %v", err)
		client.Close()
		return
	}
	go func() {
		_, _ = io.Copy(client, daemon)
		client.Close()
	}()
	defer daemon.Close()
	for {
		// Length (with itself), program, version, procedure.
		var head [16]byte
		if _, err := io.ReadFull(client, head[:]); err != nil {
			return
		}
		if binary.BigEndian.Uint32(head[4:]) == remoteProgram {
			w.mu.Lock()
			w.calls[binary.BigEndian.Uint32(head[12:])]++
			w.mu.Unlock()
		}
		if _, err := daemon.Write(head[:]); err != nil {
			return
		}
		if _, err := io.CopyN(daemon, client, int64(binary.BigEndian.Uint32(head[:]))-int64(len(head))); err != nil {
			return
		}
	}
}

// during counts the calls made during f, by procedure.
func (w *wire) during(f func()) map[uint32]int {
	w.mu.Lock()
	w.calls = map[uint32]int{}
	w.mu.Unlock()
	f()
	w.mu.Lock()
	defer w.mu.Unlock()
	return maps.Clone(w.calls)
}

// testBulk counts calls on the wire: a list, and statistics once the names of the devices are
// known, are one call, however many domains there are.
func testBulk(t *testing.T, ns *nodes) {
	const domains = 200
	w, socket := tap(t, ns.n[0].URI())
	d := open(t, "test+unix:///default?socket="+socket, libvirt.Options{})
	for i := range domains {
		name := fmt.Sprintf("bulk-%03d", i)
		op := domain.Operation{Verb: domain.Start, Domain: name, Definition: testDefinition(t, name)}
		if err := d.Apply(t.Context(), op); err != nil {
			t.Fatal(err)
		}
	}
	one := func(calls map[uint32]int) bool {
		total := 0
		for _, n := range calls {
			total += n
		}
		return total == 1
	}
	calls := w.during(func() {
		if all, err := d.List(t.Context()); err != nil || len(all) < domains {
			t.Errorf("%d domains, %v", len(all), err)
		}
	})
	if !one(calls) {
		t.Errorf("a list of %d domains took these calls: %v", domains, calls)
	}
	calls = w.during(func() {
		if all, err := d.Stats(t.Context()); err != nil || len(all) < domains {
			t.Errorf("statistics of %d domains, %v", len(all), err)
		}
	})
	if !one(calls) {
		t.Errorf("statistics of %d domains took these calls: %v", domains, calls)
	}
	for i := range domains {
		destroy(t, fmt.Sprintf("bulk-%03d", i), d)
	}
}
