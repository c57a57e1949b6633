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

// defaultPass is the maximum duration of a reconcile of a controller: ten times the timeout of a request to
// the API server, and twice the time that a call to a hypervisor may take.
const defaultPass = 10 * time.Minute

// longestPass is the metric of the duration of the oldest reconcile under way, by controller.
// controller-runtime measures it twice a second, also while all workers are stuck.
const longestPass = "workqueue_longest_running_processor_seconds"

// Passes returns a gatherer of only the durations of the oldest reconciles under way: probes are
// frequent, other metrics cost more, and a blocking one must not block a probe. The registry is
// controller-runtime's. It is an error if controller-runtime does not register this metric there.
func Passes(registry prometheus.Registerer) (prometheus.Gatherer, error) {
	probe := prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: longestPass, Help: "How many seconds has the longest running processor for workqueue been running.",
	}, []string{"name", "controller"})
	err := registry.Register(probe)
	known := prometheus.AlreadyRegisteredError{}
	switch {
	case err == nil:
		registry.Unregister(probe)
		return nil, fmt.Errorf("health: metric %s is not registered", longestPass)
	case !errors.As(err, &known):
		return nil, fmt.Errorf("health: metric %s has another type: %w", longestPass, err)
	}
	alone := prometheus.NewRegistry()
	return alone, alone.Register(known.ExistingCollector)
}

// Workers checks the workers of controllers: a worker whose reconcile never returns does nothing more, and
// no other probe notices it.
type Workers struct {
	// Passes gathers the durations of reconciles, see the function of that name; required.
	Passes prometheus.Gatherer
	// Within is the maximum duration of a reconcile. Defaults to 10 minutes.
	Within time.Duration
	// Log records why the workers are unhealthy, as the kubelet that restarts the process does not.
	// Defaults to none.
	Log logr.Logger

	blind sync.Once
}

// Alive returns an error if a reconcile has been running for too long. Durations that cannot be gathered are no
// sign of a stuck worker, and a restart would not help: that is logged once, and ignored.
func (w *Workers) Alive(*http.Request) error {
	families, err := w.Passes.Gather()
	if err != nil { // partial results are returned nevertheless
		w.blind.Do(func() { w.Log.Error(err, "Gathering durations of reconciles failed") })
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
		w.Log.Error(err, "Detected stuck workers")
	}
	return err
}

// judge returns an error if the controller's oldest reconcile has been running for too many seconds.
func (w *Workers) judge(controller string, seconds float64) error {
	age := time.Duration(seconds * float64(time.Second))
	if age <= or(w.Within, defaultPass) {
		return nil
	}
	return fmt.Errorf("a reconcile of controller %s has not returned for %s", controller, age.Round(time.Second))
}
