// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"runtime"
	"time"
)

// Load is who used the processor.
type Load struct {
	// Cores is how many cores the control plane used, the controller included, of so many.
	Cores float64 `json:"cores"`
	Of    int     `json:"of"`
	// Server is the API server's part of that, Controller the controller's.
	Server     float64 `json:"server"`
	Controller float64 `json:"controller"`
}

func (l *Load) text() string {
	return fmt.Sprintf("what limits next: %.2f of %d cores in use, of that by the API server %.0f %%, by the controller %.0f %%, by others %.0f %%",
		l.Cores, l.Of, 100*l.Server, 100*l.Controller, 100*(1-l.Server-l.Controller))
}

// load is who used the processor since the phase began.
func (m meter) load() (*Load, error) {
	controller, err := busy(m.b.daemon.Pid())
	if err != nil {
		return nil, err
	}
	server, plane, err := m.b.spent()
	if err != nil {
		return nil, err
	}
	all := plane - m.plane
	return &Load{
		Cores: all.Seconds() / time.Since(m.begun).Seconds(), Of: runtime.NumCPU(),
		Server: share(server-m.server, all), Controller: share(controller-m.controller, all),
	}, nil
}

func share(part, all time.Duration) float64 {
	if all <= 0 {
		return 0
	}
	return part.Seconds() / all.Seconds()
}
