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
	"github.com/virtloom/virtloom/domain/domaintest"
	"github.com/virtloom/virtloom/domain/launcher"
	"github.com/virtloom/virtloom/domain/libvirt"
	"github.com/virtloom/virtloom/refdaemon/configfile"
)

const (
	// A daemon that has just been started is tried again every connectRetry, for
	// connectPatience: KubeVirt's times.
	connectRetry, connectPatience = 500 * time.Millisecond, 15 * time.Second
	// shutdownRetry is how soon a guest that could not be asked to shut down is asked
	// again.
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
		Use: "launcher --vmi NAMESPACE/NAME/UID", Short: "serve one guest in its Pod, beside a libvirt daemon of its own",
		Long: `Serves one guest in its Pod, beside a libvirt daemon of its own: the agent of the node finds
it by the socket in --socket-dir. It ends when the guest is undefined; upon SIGTERM it asks
the guest to shut down, and ends when it has. As the first process of the Pod it also takes
care of processes that nobody else does.`,
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
	fs.StringVar(&o.socketDir, "socket-dir", "/var/run/kubevirt/sockets", "`directory` that the Pod shares with its node: the command channel's socket, libvirt's and those of migrations")
	fs.StringVar(&o.vmi, "vmi", "", "`namespace/name/uid` of the guest's VirtualMachineInstance (required)")
	fs.StringVar(&o.hypervisor, "hypervisor", "", "libvirt connection `URI`, or "+configfile.MemoryScheme+" for one that runs no real guests; empty is that of --libvirtd")
	fs.StringVar(&o.libvirtd, "libvirtd", "", "`program` of the libvirt daemon to run, libvirtd or virtqemud; empty runs none")
	fs.StringVar(&o.config, "libvirtd-config", "/etc/libvirt/libvirtd.conf", "`file` with the daemon's configuration, if it is there; where the daemon listens is not taken from it")
	configfile.VerbosityFlag(fs, &o.verbosity)
}

// check tells which flags are missing or wrong.
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
		errs = append(errs, errors.New("--libvirtd or --hypervisor is required: the daemon to run, or the one that runs"))
	}
	if !filepath.IsAbs(o.socketDir) {
		errs = append(errs, fmt.Errorf("--socket-dir %q is not an absolute path", o.socketDir))
	}
	return errors.Join(errs...)
}

// run serves the guest until it is undefined, or ctx has ended and it runs no more.
func (o *launcherOptions) run(ctx context.Context) error {
	// What serves the guest goes on when the Pod is asked to end, until the guest has.
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
		o.log.Info("Serving a guest", "vmi", o.guest.Namespace+"/"+o.guest.Name, "uid", o.guest.UID)
		err = o.wait(ctx, alive, hv, undefined)
	}
	stop()
	return errors.Join(err, <-served)
}

// wait returns when the guest's launcher has nothing more to do.
func (o *launcherOptions) wait(ctx, alive context.Context, hv domain.Hypervisor, undefined <-chan struct{}) error {
	select {
	case <-undefined:
		o.log.Info("The guest was undefined")
		return nil
	case <-ctx.Done():
	}
	o.log.Info("Shutting the guest down")
	return o.shutdown(alive, hv)
}

// shutdown asks the guest to end and waits until it has. How long that may take is up to
// the kubelet.
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
			o.log.Error(err, "Cannot shut the guest down yet")
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

// open connects to the hypervisor, which may have to be awaited.
func (o *launcherOptions) open(ctx context.Context) (domain.Hypervisor, error) {
	uri := o.uri()
	if strings.HasPrefix(uri, configfile.MemoryScheme) {
		return domaintest.New(o.guest.Name), nil
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

// uri is how the hypervisor is reached.
func (o *launcherOptions) uri() string {
	if o.hypervisor != "" {
		return o.hypervisor
	}
	return "qemu+unix:///system?socket=" + o.daemonSocket()
}

// daemon is the libvirt daemon to run; nil for none.
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

// daemonSocket is where the daemon listens: in the folder that the node sees, so that
// migrations find it.
func (o *launcherOptions) daemonSocket() string {
	name := "libvirt-sock"
	if filepath.Base(o.libvirtd) == "virtqemud" {
		name = "virtqemud-sock"
	}
	return filepath.Join(o.socketDir, "libvirt", name)
}
