// SPDX-License-Identifier: Apache-2.0

package rig

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sync/errgroup"

	_ "embed"
)

// DefaultStateDir is where a node keeps the files of its guests, unless FabricOptions say otherwise.
const DefaultStateDir = "/var/lib/virtloom"

// ErrNeedsRoot means that this process may not make the namespaces of a node.
var ErrNeedsRoot = errors.New("nodes other than simulated ones need root, for the namespaces they are made of: " +
	"run as root (the control plane alone works without)")

// fabricScript is what the holder of a fabric runs.
//
//go:embed fabric.sh
var fabricScript string

// nodePrograms are what a node runs, with the Debian package that has each.
var nodePrograms = []debianProgram{
	{"libvirtd", "libvirt-daemon"},
	{"virsh", "libvirt-clients"},
	{"qemu-system-x86_64", "qemu-system-x86"},
	{"ip", "iproute2"},
	{"mount", "mount"},
	{"nsenter", "util-linux"},
	{"setpriv", "util-linux"},
	{"unshare", "util-linux"},
	{"hostname", "hostname"},
}

// The network of a fabric. Every fabric has the same, as nothing of it is seen outside.
const (
	fabricPrefix  = "10.55.0."
	fabricBits    = "/24"
	fabricGateway = fabricPrefix + "1"
	// firstHost is the last part of the first node's address.
	firstHost = 11
	// lastHost leaves the upper half of the network to the guests.
	lastHost = 127
)

// FabricOptions say what the nodes of a fabric have in common. The zero value is fine.
type FabricOptions struct {
	// Dir is the folder in which the fabric makes its own temporary folder; os.TempDir() if empty.
	Dir string
	// StateDir is the path on every node of a folder that is private to it; DefaultStateDir if empty.
	// It need not exist on the machine, its parent must. Keep it short: the path of a unix socket
	// in it may have 107 bytes.
	StateDir string
	// Emulators lets the libvirtd of each node find the emulators of other architectures than the
	// machine's own, which hack/emulators.sh puts into BinDir, so that domains of arm64 and s390x can be
	// defined. Without them NewFabric is ErrNoPrograms.
	Emulators bool
	// TCP lets the libvirtd of each node listen on the fabric as well, unprotected, at port 16509, and
	// QEMU take migrations there. Without it libvirtd is reached by its unix socket alone.
	TCP bool
	// Log, if set, logs the steps of the fabric, a line at a time.
	Log func(format string, args ...any)
}

// Fabric connects hypervisor nodes by a network of their own. All of it is anonymous: no namespace
// has a name, no interface is in the network of the machine, so that any number of fabrics can run
// side by side, and nothing is left of one whose processes are gone. Its methods are safe for
// concurrent use.
type Fabric struct {
	rig      *Rig // has the folder, the logs, the watchdog and the processes
	dir      string
	stateDir string
	// emulators is the folder with the emulators of other architectures; empty if nodes have none.
	emulators string
	tcp       bool
	owned     bool // the rig exists for this fabric only
	holder    *process

	mu       sync.Mutex
	taken    map[string]bool // names of nodes of either kind
	nodes    map[string]*HypervisorNode
	kubelets map[string]*KubeletNode
	added    int // nodes that were ever added; a number is never used twice
}

// NewFabric starts a fabric without a control plane. Without root it is ErrNeedsRoot. The fabric
// outlives ctx: it runs until Stop, or until this process ends in whatever way.
func NewFabric(ctx context.Context, o FabricOptions) (*Fabric, error) {
	if err := checkNodePrograms(); err != nil {
		return nil, err
	}
	r, err := prepareBare(Options{Dir: o.Dir, Log: o.Log})
	if err != nil {
		return nil, fmt.Errorf("start a fabric: %w", err)
	}
	f, err := newFabric(ctx, r, o)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("start a fabric: %w", err), r.Stop(ctx))
	}
	f.owned = true
	return f, nil
}

// prepareBare is prepare for a rig without a control plane.
func prepareBare(o Options) (*Rig, error) {
	bin, err := BinDir()
	if err == nil {
		err = reap(filepath.Join(bin, journals))
	}
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp(o.Dir, "virtloom-rig-")
	if err != nil {
		return nil, err
	}
	r := &Rig{options: o, dir: dir}
	if r.watchdog, err = startWatchdog(dir, filepath.Join(bin, journals)); err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	if err := errors.Join(r.watchdog.AddDir(dir), os.Mkdir(r.logDir(), 0o755)); err != nil {
		return nil, errors.Join(err, r.watchdog.close(false))
	}
	return r, nil
}

// newFabric starts a fabric in the folder of r, which stops it.
func newFabric(ctx context.Context, r *Rig, o FabricOptions) (*Fabric, error) {
	f := &Fabric{
		rig: r, dir: filepath.Join(r.dir, "fabric"), stateDir: o.StateDir, tcp: o.TCP,
		taken: map[string]bool{}, nodes: map[string]*HypervisorNode{}, kubelets: map[string]*KubeletNode{},
	}
	if f.stateDir == "" {
		f.stateDir = DefaultStateDir
	}
	if !filepath.IsAbs(f.stateDir) || filepath.Clean(f.stateDir) != f.stateDir || filepath.Dir(f.stateDir) == "/" {
		return nil, fmt.Errorf("FabricOptions.StateDir %q is not a clean absolute path of two parts or more", f.stateDir)
	}
	if o.Emulators {
		var err error
		if f.emulators, err = findEmulators(); err != nil {
			return nil, err
		}
	}
	if err := os.MkdirAll(f.SharedDir(), 0o755); err != nil {
		return nil, err
	}
	script := filepath.Join(f.dir, "fabric.sh")
	if err := os.WriteFile(script, []byte(fabricScript), 0o644); err != nil {
		return nil, err
	}
	cmd := exec.Command("/bin/sh", script, fabricGateway+fabricBits)
	if r.options.Kubelets {
		cmd.Args = append(cmd.Args, "route")
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
	holder, err := f.spawnUntilReady(ctx, "fabric", cmd, nil)
	if err != nil {
		return nil, err
	}
	f.holder = holder
	r.onStop(f.stopNodes)
	return f, nil
}

// SharedDir is a folder with the same path on the machine and on every node: what shared storage
// would be.
func (f *Fabric) SharedDir() string { return filepath.Join(f.dir, "shared") }

// StateDir is the path of the folder that is private to each node.
func (f *Fabric) StateDir() string { return f.stateDir }

// Dir is the temporary folder of the fabric; log in it, or in that of the rig it belongs to, holds
// the logs of the nodes.
func (f *Fabric) Dir() string { return f.dir }

// Keep makes Stop leave the logs behind: call it when something failed.
func (f *Fabric) Keep() { f.rig.Keep() }

// LogDir has the logs of the nodes, a folder for each.
func (f *Fabric) LogDir() string { return f.rig.logDir() }

// Stop ends every node with all its guests and removes the folders. A fabric that belongs to a rig
// is stopped with it; for such a one Stop ends the nodes and leaves the rest to Rig.Stop.
func (f *Fabric) Stop(ctx context.Context) error {
	if f.owned {
		return f.rig.Stop(ctx)
	}
	return f.stopNodes(ctx)
}

// stopNodes ends the nodes and the fabric and removes what is not a log.
func (f *Fabric) stopNodes(ctx context.Context) error {
	f.mu.Lock()
	stops := make([]func(context.Context) error, 0, len(f.nodes)+len(f.kubelets))
	for _, n := range f.nodes {
		stops = append(stops, n.Stop)
	}
	for _, n := range f.kubelets {
		stops = append(stops, n.Stop)
	}
	f.mu.Unlock()
	var group errgroup.Group
	for _, stop := range stops {
		group.Go(func() error { return stop(ctx) })
	}
	return errors.Join(group.Wait(), f.holder.stop(0), os.RemoveAll(f.dir))
}

// spawnUntilReady starts cmd, calls during while it starts, and returns when it has said that it is
// ready: a first line on its standard output.
func (f *Fabric) spawnUntilReady(
	ctx context.Context, name string, cmd *exec.Cmd, during func(*process) error,
) (*process, error) {
	log, err := os.OpenFile(filepath.Join(f.LogDir(), name+".log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	ready, readyIn, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer ready.Close()
	cmd.Stdout, cmd.Stderr = readyIn, log
	p, err := f.rig.spawn(name, cmd)
	err = errors.Join(err, readyIn.Close())
	if errors.Is(err, syscall.EPERM) {
		err = fmt.Errorf("%w (%w)", ErrNeedsRoot, err)
	}
	if err != nil {
		return nil, err
	}
	p.log = log.Name()
	if during != nil {
		err = during(p)
	}
	if err == nil {
		err = awaitLine(ctx, ready)
	}
	if err != nil {
		err = fmt.Errorf("start %s: %w", name, err)
		return nil, errors.Join(err, p.stop(0), errors.New("its messages:"+p.tail()))
	}
	return p, nil
}

// awaitLine waits until something has been written to the pipe. It closes the pipe if ctx ends.
func awaitLine(ctx context.Context, pipe *os.File) error {
	defer context.AfterFunc(ctx, func() { _ = pipe.Close() })()
	if _, err := pipe.Read(make([]byte, 1)); err != nil {
		return errors.Join(fmt.Errorf("it never became ready: %w", err), context.Cause(ctx))
	}
	return nil
}

// checkNodePrograms returns an error that names programs missing for hypervisor nodes, and how to install them.
func checkNodePrograms() error { return checkPrograms("hypervisor nodes", nodePrograms) }

// debianProgram is a program with the Debian package that has it.
type debianProgram struct{ name, pkg string }

// checkPrograms returns an error that names programs missing for what, and how to install them.
func checkPrograms(what string, programs []debianProgram) error {
	if os.Geteuid() != 0 {
		return ErrNeedsRoot
	}
	var names, packages []string
	for _, p := range programs {
		if _, err := exec.LookPath(p.name); err != nil {
			names, packages = append(names, p.name), append(packages, p.pkg)
		}
	}
	if len(names) > 0 {
		return fmt.Errorf("%s need %s: install %s (\"make setup\" does)",
			what, strings.Join(names, ", "), strings.Join(packages, " "))
	}
	return nil
}

// nodeName is what a node may be called: it becomes a host name, a folder and part of a file name.
var nodeName = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?$`)
