// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	uberzap "go.uber.org/zap"
	"k8s.io/apimachinery/pkg/types"

	"github.com/virtloom/virtloom/domain/launcher"
	"github.com/virtloom/virtloom/refdaemon/configfile"
)

// launcherOptions are the flags of "refdaemon launcher".
type launcherOptions struct {
	name, namespace, uid string
	shareDir             string
	privateDir           string
	connect              string
	libvirtd             string
	config               string
	logFilters           string
	qemuTimeout          time.Duration
	graceSeconds         int64
	keepAfterFailure     bool
	simulateCrash        bool
	verbosity            int

	guest launcher.Guest
	log   logr.Logger
}

func newLauncher() *cobra.Command {
	o := launcherOptions{verbosity: environmentVerbosity()}
	cmd := &cobra.Command{
		Use: "launcher --namespace NAMESPACE --name NAME --uid UID", Short: "serve one VMI in its launcher Pod, with a libvirt daemon of its own",
		Long: `Serves one VMI in its launcher Pod, with a libvirt daemon of its own: the agent of the node
finds it by the socket in sockets/ below --kubevirt-share-dir. It takes the flags with which
KubeVirt's Pods call virt-launcher-monitor; those that it does not need have no effect. It exits
when the domain is undefined; upon SIGTERM it requests a graceful shutdown, and destroys the domain
when --grace-period-seconds are over. As the first process of the Pod it also reaps orphaned
processes. Unless it is root, libvirt runs in session mode: in the folders of XDG_CONFIG_HOME,
XDG_CACHE_HOME and XDG_RUNTIME_DIR. The logs of libvirt, QEMU and the guest's TPM go to its own.`,
		Example: `  refdaemon launcher --namespace default --name web --uid 0a1b2c3d-0000-4000-8000-000000000001
  refdaemon launcher --namespace default --name web --uid 0a1b2c3d-0000-4000-8000-000000000001 --connect memory: --kubevirt-share-dir /run/web`,
		Args: checked(o.check),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if os.Getpid() == 1 {
				return beInit(os.Args)
			}
			o.log = newLogger(uberzap.NewAtomicLevelAt(zapLevel(o.verbosity)))
			return o.supervised(cmd.Context())
		},
	}
	o.flags(cmd.Flags())
	return cmd
}

func (o *launcherOptions) flags(fs *pflag.FlagSet) {
	fs.StringVar(&o.namespace, "namespace", "", "`namespace` of the VirtualMachineInstance (required)")
	fs.StringVar(&o.name, "name", "", "`name` of the VirtualMachineInstance (required)")
	fs.StringVar(&o.uid, "uid", "", "`UID` of the VirtualMachineInstance (required)")
	fs.StringVar(&o.shareDir, "kubevirt-share-dir", "/var/run/kubevirt", "`directory` whose sockets/ is shared with the node, for the sockets of the command channel, of libvirt and of migrations")
	fs.StringVar(&o.privateDir, "private-dir", "/var/run/kubevirt-private", "`directory` of the VMI's console and of the files of libvirt in session mode")
	fs.DurationVar(&o.qemuTimeout, "qemu-timeout", 5*time.Minute, "exit if there is no domain and no agent for this `time`")
	fs.Int64Var(&o.graceSeconds, "grace-period-seconds", 30, "`seconds` from SIGTERM until the domain is destroyed")
	fs.StringVar(&o.logFilters, "libvirt-log-filters", "", "libvirt's log `filters`, LEVEL:NAME ...")
	fs.BoolVar(&o.keepAfterFailure, "keep-after-failure", false, "after a failure, wait for SIGTERM before exiting")
	fs.BoolVar(&o.simulateCrash, "simulate-crash", false, "fail at once, for tests")
	fs.StringVar(&o.connect, "connect", "", "libvirt connection `URI` of a running daemon, or "+configfile.MemoryScheme+" for the in-memory hypervisor; empty runs --libvirtd")
	fs.StringVar(&o.libvirtd, "libvirtd", "", "`program` of the libvirt daemon to run; empty is virtqemud or libvirtd")
	fs.StringVar(&o.config, "libvirtd-config", "/etc/libvirt/libvirtd.conf", "`file` with the daemon's configuration, if it exists; its listening addresses are ignored")
	configfile.VerbosityFlag(fs, &o.verbosity)
	// The agent refuses hook sidecars in a condition of the VMI, which its user sees; the end of a launcher would say less.
	fs.Uint("hook-sidecars", 0, "no effect: no hooks are called")
	unneededFlags(fs)
}

// unneededFlags are flags of KubeVirt's virt-launcher for what the agent of the node does here, or libvirt finds by itself.
func unneededFlags(fs *pflag.FlagSet) {
	for _, name := range []string{"ephemeral-disk-dir", "container-disk-dir", "ovmf-path", "disk-memory-limit", "hypervisor"} {
		fs.String(name, "", "no effect")
	}
	for _, name := range []string{
		"run-as-nonroot", "image-volume", "upgrade-ordinal-ifaces", "vgpu-dedicated-hook", "vm-stats-collector", "firmware-auto-selection",
		"allow-emulation", "allow-cross-arch-emulation",
	} {
		fs.Bool(name, false, "no effect")
	}
}

// environmentVerbosity returns the log level that KubeVirt's Pods set.
func environmentVerbosity() int {
	// KubeVirt counts from 2, which is what it logs without a setting.
	n, err := strconv.Atoi(os.Getenv("VIRT_LAUNCHER_LOG_VERBOSITY"))
	if err != nil {
		return 0
	}
	return max(0, n-2)
}

// logFilter matches libvirt's log filters, which end up in the daemon's configuration.
var logFilter = regexp.MustCompile(`^([1-4]:[A-Za-z0-9_.*+-]+( |$))*$`)

// check returns an error that names missing and invalid flags.
func (o *launcherOptions) check(rest []string) error {
	var errs []error
	if len(rest) > 0 {
		errs = append(errs, fmt.Errorf("unexpected arguments %q", rest))
	}
	errs = append(errs, o.checkPaths()...)
	o.guest = launcher.Guest{Namespace: o.namespace, Name: o.name, UID: types.UID(o.uid)}
	if !logFilter.MatchString(o.logFilters) {
		errs = append(errs, fmt.Errorf("--libvirt-log-filters %q must be LEVEL:NAME, separated by spaces", o.logFilters))
	}
	if o.qemuTimeout <= 0 || o.graceSeconds < 0 {
		errs = append(errs, errors.New("--qemu-timeout must be positive, and --grace-period-seconds not negative"))
	}
	if o.connect == "" && o.libvirtd == "" {
		var err error
		if o.libvirtd, err = daemonProgram(); err != nil {
			errs = append(errs, fmt.Errorf("no libvirt daemon to run, and no --connect: %w", err))
		}
	}
	return errors.Join(errs...)
}

// checkPaths checks directories, and the names that become parts of paths.
func (o *launcherOptions) checkPaths() (errs []error) {
	for flag, value := range map[string]string{"--namespace": o.namespace, "--name": o.name, "--uid": o.uid} {
		if value == "" || value != filepath.Base(value) || value == "." || value == ".." {
			errs = append(errs, fmt.Errorf("%s %q does not name a VirtualMachineInstance", flag, value))
		}
	}
	for flag, dir := range map[string]string{"--kubevirt-share-dir": o.shareDir, "--private-dir": o.privateDir} {
		if !filepath.IsAbs(dir) {
			errs = append(errs, fmt.Errorf("%s %q must be an absolute path", flag, dir))
		}
	}
	return errs
}

// daemonProgram finds the libvirt daemon: that of QEMU alone, or the one of all drivers.
func daemonProgram() (string, error) {
	program, err := exec.LookPath("virtqemud")
	if err != nil {
		program, err = exec.LookPath("libvirtd")
	}
	return program, err
}

// socketDir returns the directory that is shared with the node.
func (o *launcherOptions) socketDir() string { return filepath.Join(o.shareDir, "sockets") }

// guestDir returns the directory of the guest's console.
func (o *launcherOptions) guestDir() string { return filepath.Join(o.privateDir, o.uid) }

// session reports whether libvirt runs in session mode, as it does for every user but root.
func (o *launcherOptions) session() bool { return os.Geteuid() != 0 }

// daemonSocket returns the path of the daemon's socket, in the directory shared with the node so
// that migrations find it.
func (o *launcherOptions) daemonSocket() string {
	name := "libvirt-sock"
	if filepath.Base(o.libvirtd) == "virtqemud" {
		name = "virtqemud-sock"
	}
	return filepath.Join(o.socketDir(), "libvirt", name)
}

// uri returns the connection URI of the hypervisor.
func (o *launcherOptions) uri() string {
	switch {
	case o.connect != "":
		return o.connect
	case o.session():
		return "qemu+unix:///session?socket=" + o.daemonSocket()
	}
	return "qemu+unix:///system?socket=" + o.daemonSocket()
}

// inMemory reports whether there is no libvirt at all.
func (o *launcherOptions) inMemory() bool {
	return strings.HasPrefix(o.connect, configfile.MemoryScheme)
}
