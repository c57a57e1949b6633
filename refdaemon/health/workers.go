// SPDX-License-Identifier: Apache-2.0

package health

import (
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
)

// DefaultPass is how long a pass of a controller may take: ten times what an API server allows for a
// request, and twice what a question to a hypervisor may take to return.
const DefaultPass = 10 * time.Minute

// longestPass is how long the oldest pass under way has been running, by controller, as
// controller-runtime measures it: twice a second, also while all workers are stuck.
const longestPass = "workqueue_longest_running_processor_seconds"

// Passes returns a gatherer of how long the oldest passes under way have been running, and of nothing
// else: probes come often, other metrics cost more, and one that hangs is none of theirs. The
// registry is controller-runtime's. It is an error if controller-runtime does not measure passes there
// as it is known to.
func Passes(registry prometheus.Registerer) (prometheus.Gatherer, error) {
	probe := prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: longestPass, Help: "How many seconds has the longest running processor for workqueue been running.",
	}, []string{"name", "controller"})
	err := registry.Register(probe)
	known := prometheus.AlreadyRegisteredError{}
	switch {
	case err == nil:
		registry.Unregister(probe)
		return nil, fmt.Errorf("health: nobody measures %s", longestPass)
	case !errors.As(err, &known):
		return nil, fmt.Errorf("health: %s is measured in another way: %w", longestPass, err)
	}
	alone := prometheus.NewRegistry()
	return alone, alone.Register(known.ExistingCollector)
}

// Workers looks after the workers of controllers: one whose pass never returns does nothing more, and
// nobody else would tell.
type Workers struct {
	// Passes gathers how long passes have been running, see the function of that name; required.
	Passes prometheus.Gatherer
	// Within is how long a pass may take. Defaults to DefaultPass.
	Within time.Duration
	// Log is told why the workers are not sound, as whoever restarts the process does not ask. Defaults
	// to none.
	Log logr.Logger

	blind sync.Once
}

// Alive is sound unless a pass has been running for too long. Passes that cannot be measured are no sign of
// one that is stuck, and a restart would not have them measured: that is told once, and nothing more.
func (w *Workers) Alive(*http.Request) error {
	families, err := w.Passes.Gather()
	if err != nil { // what could be gathered is there nevertheless
		w.blind.Do(func() { w.Log.Error(err, "Could not measure how long passes have been running") })
	}
	var stuck []error
	for _, f := range families {
		if f.GetName() != longestPass {
			continue
		}
		for _, m := range f.GetMetric() {
			labels := map[string]string{}
			for _, l := range m.GetLabel() {
				labels[l.GetName()] = l.GetValue()
			}
			stuck = append(stuck, w.judge(labels["controller"], m.GetGauge().GetValue()))
		}
	}
	if err = errors.Join(stuck...); err != nil {
		w.Log.Error(err, "Workers are stuck")
	}
	return err
}

// judge is an error if the controller's oldest pass has been running for too many seconds.
func (w *Workers) judge(controller string, seconds float64) error {
	age := time.Duration(seconds * float64(time.Second))
	if age <= or(w.Within, DefaultPass) {
		return nil
	}
	return fmt.Errorf("a pass of controller %s has not returned for %s", controller, age.Round(time.Second))
}
