// SPDX-License-Identifier: Apache-2.0

package domaintest

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"libvirt.org/go/libvirtxml"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/transport"
)

// Driver is the subject of [Conformance]: a hypervisor and how to provoke it. Only Hypervisor and
// Definition are needed for [Core]; each other field belongs to an [Ability], which it names.
type Driver struct {
	// Hypervisor is under test. The suite touches only domains of its own.
	Hypervisor domain.Hypervisor
	// Definition returns a startable domain of that name, with virtloom's metadata. UUIDs of
	// different names differ.
	Definition func(t testing.TB, name string) *libvirtxml.Domain
	// Unsupported declares the abilities that the driver lacks, and why. Where the hypervisor has
	// the call all the same it has to return [domain.ErrUnsupported].
	Unsupported map[Ability]string
	// Fit changes a domain of Definition for the cases that require the ability.
	Fit map[Ability]func(t testing.TB, d *libvirtxml.Domain)
	// Devices returns the device for DiskHotplug, SCSIHotplug, InterfaceHotplug and MemoryHotplug,
	// and for MediumChange the drive that Fit has added with another medium in it. The guest may
	// need some time to release a device.
	Devices map[Ability]func(t testing.TB) domain.Device
	// Crash kills the process of a domain.
	Crash func(t testing.TB, name string)
	// Disconnect breaks the connection and Reconnect makes it possible again.
	Disconnect, Reconnect func(t testing.TB)
	// Peer is another hypervisor, reached from this one at PeerURI.
	Peer    domain.Hypervisor
	PeerURI string
	// Route returns the route to the peer for the migration of that domain; nil means PeerURI.
	Route func(t testing.TB, name string) transport.Route
	// Cut breaks the link to the peer, with its streams, and Mend restores it.
	Cut, Mend func(t testing.TB)
	// Slow makes a request for a migration that takes long, unless its bandwidth is changed; nil
	// means that all do.
	Slow func(*domain.MigrationRequest)
	// Timeout bounds every wait; default 60 s. It only matters when a test fails.
	Timeout time.Duration
}

// conformanceCase is one test of the suite.
type conformanceCase struct {
	// needs are the abilities without which it is skipped, core whether every driver has to pass
	// it.
	needs []Ability
	core  bool
	run   func(*suite)
}

// Conformance tests the contract of [domain.Hypervisor] and of its abilities against the driver
// that open returns; open is called once per case. A driver that lacks an ability of a case fails
// it, unless that is declared: then the case is skipped, the declaration is printed at the end, and
// a case of its own checks that the driver refuses the ability.
func Conformance(t *testing.T, open func(t testing.TB) Driver) {
	t.Helper()
	runCases(t, open, allCases())
}

// Core runs the part of [Conformance] that every driver has to pass: the lifecycle of a domain,
// metadata, lists, hints, contexts and errors. A first draft of a driver is useful with this alone.
func Core(t *testing.T, open func(t testing.TB) Driver) {
	t.Helper()
	core := allCases()
	maps.DeleteFunc(core, func(_ string, c conformanceCase) bool { return !c.core })
	runCases(t, open, core)
}

// allCases are the cases by their names.
func allCases() map[string]conformanceCase {
	all := map[string]conformanceCase{}
	for _, some := range []map[string]conformanceCase{
		lifeCases, callCases, eventCases, migrationCases, movingCases, deviceCases, machineCases, agentCases, snapshotCases, consoleCases, statsCases,
		stateCases(), methodCases(),
	} {
		maps.Copy(all, some)
	}
	return all
}

func runCases(t *testing.T, open func(t testing.TB) Driver, cases map[string]conformanceCase) {
	t.Helper()
	declared := map[string][]string{} // by ability and reason
	for i, name := range slices.Sorted(maps.Keys(cases)) {
		t.Run(name, func(t *testing.T) {
			c, d := cases[name], open(t)
			for _, a := range c.needs {
				if why, ok := d.Unsupported[a]; ok {
					key := fmt.Sprintf("%s: %s", a, why)
					declared[key] = append(declared[key], name)
					t.Skipf("declared unsupported: %s: %s", a, why)
				}
				if lacks := d.lacks(a); lacks != "" {
					t.Fatalf("requires %s, which the driver has not declared unsupported, but it lacks %s", a, lacks)
				}
			}
			s := newSuite(t, d, fmt.Sprintf("conformance_case%03d", i))
			s.needs = c.needs
			c.run(s)
		})
	}
	for _, what := range slices.Sorted(maps.Keys(declared)) {
		t.Logf("declared unsupported: %s: %d cases: %q", what, len(declared[what]), declared[what])
	}
	runRefusals(t, open)
}

// runRefusals checks that the driver refuses the abilities it has declared as unsupported.
func runRefusals(t *testing.T, open func(t testing.TB) Driver) {
	t.Helper()
	for _, a := range slices.Sorted(maps.Keys(open(t).Unsupported)) {
		refuse, ok := refusals[a]
		if !ok {
			continue
		}
		t.Run("declared unsupported is refused/"+string(a), func(t *testing.T) {
			s := newSuite(t, open(t), "refusal_"+string(a))
			s.needs = []Ability{a}
			s.start()
			refuse(s)
		})
	}
}

func newSuite(t *testing.T, d Driver, name string) *suite {
	if d.Timeout == 0 {
		d.Timeout = time.Minute
	}
	ctx, cancel := context.WithTimeout(t.Context(), d.Timeout)
	t.Cleanup(cancel)
	s := &subject{TB: t, Driver: d, ctx: ctx, name: name}
	t.Cleanup(s.cleanUp)
	return &suite{s, callCase{s}, agentCase{s}, snapshotCase{s}, consoleCase{s}, migrationCase{s}}
}
