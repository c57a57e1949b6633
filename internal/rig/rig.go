// SPDX-License-Identifier: Apache-2.0

package rig

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
)

// Options say what rig to start. The zero value is a control plane without nodes.
type Options struct {
	// Dir is the folder in which the rig makes its own temporary folder; os.TempDir() if empty.
	Dir string
	// Log, if set, logs the steps of the rig, a line at a time.
	Log func(format string, args ...any)
	// SimulatedNodes is how many nodes without a hypervisor, called sim-0, sim-1 and so on, are
	// there when Start returns.
	SimulatedNodes int
	// SimulatedNode is what those nodes look like. Name and Address are filled in.
	SimulatedNode NodeSpec
	// Controllers are those of kube-controller-manager that run besides the ones that guests need:
	// "deployment-controller", for example.
	Controllers []string
	// AdmissionPlugins are those of the API server that run besides the ones that it has by default.
	AdmissionPlugins []string
	// Kubelets makes it possible to start nodes with a kubelet, see [Rig.StartKubeletNode]. The control plane is in the network
	// of the fabric then, so that it reaches Pods and they reach it, and all controllers of kube-controller-manager run. It needs
	// root, and a webhook of a program on the machine cannot be called.
	Kubelets bool
	// Bare leaves out what virtloom needs in a cluster, KubeVirt's definitions and the rights of the daemons, for whoever wants
	// to install it.
	Bare bool
	// Definitions are definitions of further kinds that the API server serves.
	Definitions []*apiextensionsv1.CustomResourceDefinition
	// Fabric is what the hypervisor nodes have in common; its Dir and Log are those of the rig.
	Fabric FabricOptions
	// LeanAudit keeps the bodies of requests out of the audit log, which spares the API server work
	// that a measurement would count as its own. [MovesOf] has nothing to read then.
	LeanAudit bool
	// KeepLogs leaves the temporary folder (not the data of etcd) behind after Stop, as Keep does.
	KeepLogs bool
}

// Rig is a running control plane. Its methods are safe for concurrent use.
type Rig struct {
	options  Options
	dir      string // all of it, short of dataDir
	dataDir  string // of etcd, in memory where the machine has that
	bin      string
	watchdog *watchdog
	pki      *authority
	ports    ports
	server   string // URL of the API server

	mu        sync.Mutex
	processes []*process // in the order they were started
	stops     []func(context.Context) error
	keep      bool
	stopped   bool

	audited audited

	fabricMu sync.Mutex // held while the fabric is started, which takes seconds
	fabric   *Fabric    // of the nodes, nil until there is one
	api      *relay     // from the machine to an API server in the network of the fabric; nil without Options.Kubelets

	migrationMu  sync.Mutex
	migrationPKI *authority // of the certificates that nodes show each other, nil until there is one
}

// Dir is the temporary folder of the rig. Below it, log holds a file for each process.
func (r *Rig) Dir() string { return r.dir }

// auditLog is the path of the API server's audit log, one JSON event on a line. It has every
// request but watches, health probes and leases, at level Metadata; user.username names the
// component.
func (r *Rig) auditLog() string { return filepath.Join(r.logDir(), "audit.log") }

// ProcessID is the number of a process of the rig, by its name: "kube-apiserver", or what Run was
// given. Of several the last one started counts. It is zero if there is none that runs.
func (r *Rig) ProcessID(name string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := len(r.processes) - 1; i >= 0; i-- {
		if p := r.processes[i]; p.name == name && p.running() {
			return p.Pid()
		}
	}
	return 0
}

// Keep makes Stop leave the temporary folder, with the logs, behind: call it when something failed.
func (r *Rig) Keep() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.keep = true
}

func (r *Rig) logDir() string { return filepath.Join(r.dir, "log") }

func (r *Rig) logf(format string, args ...any) {
	if r.options.Log != nil {
		r.options.Log(format, args...)
	}
}

// onStop registers what Stop does before it ends the rig's processes, the last registered first.
func (r *Rig) onStop(f func(context.Context) error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.stops = append(r.stops, f)
}

// Stop ends every process of the rig and removes its folders; after Keep the temporary folder
// stays. A rig that cannot be stopped in full reports what is in the way and leaves the rest to
// the watchdog. Further calls do nothing.
func (r *Rig) Stop(ctx context.Context) error {
	r.mu.Lock()
	if r.stopped {
		r.mu.Unlock()
		return nil
	}
	r.stopped = true
	stops, keep := r.stops, r.keep
	r.mu.Unlock()

	var errs []error
	for i := len(stops) - 1; i >= 0; i-- {
		errs = append(errs, stops[i](ctx))
	}
	r.mu.Lock()
	processes := r.processes
	r.mu.Unlock()
	for i := len(processes) - 1; i >= 0; i-- {
		errs = append(errs, processes[i].stop(0))
	}
	errs = append(errs, os.RemoveAll(r.dataDir))
	if !keep {
		errs = append(errs, os.RemoveAll(r.dir))
	}
	err := errors.Join(errs...)
	if err = errors.Join(err, r.watchdog.close(err == nil || keep)); err != nil {
		return fmt.Errorf("stop the rig in %s: %w", r.dir, err)
	}
	return nil
}
