// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	uberzap "go.uber.org/zap"
	"k8s.io/apimachinery/pkg/types"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/launcher"
	"github.com/virtloom/virtloom/domain/libvirt"
	"github.com/virtloom/virtloom/domain/memory"
	"github.com/virtloom/virtloom/refdaemon/configfile"
)

const (
	// Connecting to a daemon that was just started is retried every connectRetry, for
	// connectPatience: KubeVirt's times.
	connectRetry, connectPatience = 500 * time.Millisecond, 15 * time.Second
	// shutdownRetry is the interval at which a failed shutdown request is retried.
	shutdownRetry = 5 * time.Second
)

// launcherOptions are the flags of "refdaemon launcher".
type launcherOptions struct {
	socketDir  string
	vmi        string
	hypervisor string
	libvirtd   string
	config     string
	verbosity  int

	guest launcher.Guest
	log   logr.Logger
}

func newLauncher() *cobra.Command {
	var o launcherOptions
	cmd := &cobra.Command{
		Use: "launcher --vmi NAMESPACE/NAME/UID", Short: "serve one VMI in its launcher Pod, with a libvirt daemon of its own",
		Long: `Serves one VMI in its launcher Pod, with a libvirt daemon of its own: the agent of the node
finds it by the socket in --socket-dir. It exits when the domain is undefined; upon SIGTERM it
requests a graceful shutdown, and exits when the domain is gone. As the first process of the
Pod it also reaps orphaned processes.`,
		Example: `  refdaemon launcher --vmi default/web/0a1b2c3d-0000-4000-8000-000000000001 --libvirtd /usr/sbin/virtqemud
  refdaemon launcher --vmi default/web/0a1b2c3d-0000-4000-8000-000000000001 --hypervisor memory: --socket-dir /run/web`,
		Args: checked(o.check),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if os.Getpid() == 1 {
				return beInit(os.Args)
			}
			o.log = newLogger(uberzap.NewAtomicLevelAt(zapLevel(o.verbosity)))
			return o.run(cmd.Context())
		},
	}
	o.flags(cmd.Flags())
	return cmd
}

func (o *launcherOptions) flags(fs *pflag.FlagSet) {
	fs.StringVar(&o.socketDir, "socket-dir", "/var/run/kubevirt/sockets", "`directory` shared with the node, for the sockets of the command channel, of libvirt and of migrations")
	fs.StringVar(&o.vmi, "vmi", "", "`namespace/name/uid` of the VirtualMachineInstance (required)")
	fs.StringVar(&o.hypervisor, "hypervisor", "", "libvirt connection `URI`, or "+configfile.MemoryScheme+" for the in-memory hypervisor; empty is that of --libvirtd")
	fs.StringVar(&o.libvirtd, "libvirtd", "", "`program` of the libvirt daemon to run, libvirtd or virtqemud; empty runs none")
	fs.StringVar(&o.config, "libvirtd-config", "/etc/libvirt/libvirtd.conf", "`file` with the daemon's configuration, if it exists; its listening addresses are ignored")
	configfile.VerbosityFlag(fs, &o.verbosity)
}

// check returns an error that names missing and invalid flags.
func (o *launcherOptions) check(rest []string) error {
	var errs []error
	if len(rest) > 0 {
		errs = append(errs, fmt.Errorf("unexpected arguments %q", rest))
	}
	parts := strings.Split(o.vmi, "/")
	if len(parts) != 3 || parts[0] == "" || parts[1] == "" || parts[2] == "" {
		errs = append(errs, fmt.Errorf("--vmi %q is not namespace/name/uid of a VirtualMachineInstance", o.vmi))
	} else {
		o.guest = launcher.Guest{Namespace: parts[0], Name: parts[1], UID: types.UID(parts[2])}
	}
	if o.hypervisor == "" && o.libvirtd == "" {
		errs = append(errs, errors.New("--libvirtd or --hypervisor is required: the daemon to run, or a running one"))
	}
	if !filepath.IsAbs(o.socketDir) {
		errs = append(errs, fmt.Errorf("--socket-dir %q must be an absolute path", o.socketDir))
	}
	return errors.Join(errs...)
}

// run serves the VMI until its domain is undefined, or ctx has ended and the domain is shut off.
func (o *launcherOptions) run(ctx context.Context) error {
	// The servers continue after the Pod's SIGTERM, until the domain is shut off.
	alive, end := context.WithCancel(context.WithoutCancel(ctx))
	if err := os.MkdirAll(o.socketDir, 0o755); err != nil {
		end()
		return err
	}
	l, err := launcher.Listen(ctx, o.socketDir)
	if err != nil {
		end()
		return err
	}
	defer func() { _ = l.Close() }()
	daemon, err := o.daemon()
	if err != nil {
		end()
		return err
	}
	go serveDHCP(alive, o.log)
	stopped := daemon.start(alive)
	defer func() {
		end()
		<-stopped
	}()
	hv, err := o.open(ctx)
	if err != nil {
		return err
	}
	undefined := make(chan struct{}, 1)
	s := &launcher.Server{
		Hypervisor: hv, Guest: o.guest, Version: version(), Shared: o.socketDir,
		Undefined: func() {
			select {
			case undefined <- struct{}{}:
			default:
			}
		},
	}
	serving, stop := context.WithCancel(alive)
	served := make(chan error, 1)
	go func() { served <- s.Serve(serving, l.Listener) }()
	err = l.Ready()
	if err == nil {
		o.log.Info("Serving VMI", "vmi", o.guest.Namespace+"/"+o.guest.Name, "uid", o.guest.UID)
		err = o.wait(ctx, alive, hv, undefined)
	}
	stop()
	return errors.Join(err, <-served)
}

// wait returns when the launcher has nothing more to do.
func (o *launcherOptions) wait(ctx, alive context.Context, hv domain.Hypervisor, undefined <-chan struct{}) error {
	select {
	case <-undefined:
		o.log.Info("Domain undefined")
		return nil
	case <-ctx.Done():
	}
	o.log.Info("Shutting down domain")
	return o.shutdown(alive, hv)
}

// shutdown requests a graceful shutdown and waits for its end. The kubelet bounds the time.
func (o *launcherOptions) shutdown(ctx context.Context, hv domain.Hypervisor) error {
	events, err := hv.Watch(ctx)
	if err != nil {
		return err
	}
	tick := time.NewTicker(shutdownRetry)
	defer tick.Stop()
	for asked := false; ; {
		st, err := hv.Get(ctx, o.guest.Domain())
		if errors.Is(err, domain.ErrNotFound) || err == nil && !st.Alive() {
			return nil
		}
		if err == nil && !asked {
			err = hv.Apply(ctx, domain.Operation{Verb: domain.Shutdown, Domain: o.guest.Domain()})
			asked = err == nil
		}
		if err != nil {
			o.log.Error(err, "Shutting down domain failed, retrying")
		}
		select {
		case _, more := <-events:
			if !more {
				return fmt.Errorf("shut down: %w", domain.ErrDisconnected)
			}
		case <-tick.C:
		}
	}
}

// open connects to the hypervisor, and waits until it is up.
func (o *launcherOptions) open(ctx context.Context) (domain.Hypervisor, error) {
	uri := o.uri()
	if strings.HasPrefix(uri, configfile.MemoryScheme) {
		return memory.New(o.guest.Name), nil
	}
	ctx, cancel := context.WithTimeout(ctx, connectPatience)
	defer cancel()
	for {
		hv, err := libvirt.Open(ctx, uri, libvirt.Options{MigrationDir: filepath.Join(o.socketDir, "migration"), Log: o.log})
		if err == nil {
			return hv, nil
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("open hypervisor %q: %w", uri, err)
		case <-time.After(connectRetry):
		}
	}
}

// uri returns the connection URI of the hypervisor.
func (o *launcherOptions) uri() string {
	if o.hypervisor != "" {
		return o.hypervisor
	}
	return "qemu+unix:///system?socket=" + o.daemonSocket()
}

// daemon returns the libvirt daemon to run; nil for none.
func (o *launcherOptions) daemon() (*libvirtDaemon, error) {
	if o.libvirtd == "" {
		return nil, nil
	}
	base, err := os.ReadFile(o.config)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	d := &libvirtDaemon{program: o.libvirtd, dir: filepath.Dir(o.daemonSocket()), log: o.log}
	return d, d.configure(string(base))
}

// daemonSocket returns the path of the daemon's socket, in the directory shared with the node so
// that migrations find it.
func (o *launcherOptions) daemonSocket() string {
	name := "libvirt-sock"
	if filepath.Base(o.libvirtd) == "virtqemud" {
		name = "virtqemud-sock"
	}
	return filepath.Join(o.socketDir, "libvirt", name)
}
