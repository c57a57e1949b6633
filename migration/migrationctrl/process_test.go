// SPDX-License-Identifier: Apache-2.0

package migrationctrl_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"
	"k8s.io/client-go/tools/clientcmd"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/virtloom/virtloom/internal/rig"
)

// kubeconfigEnv has the kubeconfig of a process that is a controller and not a test.
const kubeconfigEnv = "MIGRATIONCTRL_TEST_KUBECONFIG"

func TestMain(m *testing.M) {
	kubeconfig, ordered := os.LookupEnv(kubeconfigEnv)
	if !ordered {
		os.Exit(m.Run())
	}
	if err := control(kubeconfig); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// control is the controller. It ends when its input does, so that it does not outlive
// the test.
func control(kubeconfig string) error {
	cfg, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return err
	}
	cfg.QPS = -1
	ctrl.SetLogger(funcr.New(func(prefix, args string) { fmt.Fprintln(os.Stderr, prefix, args) }, funcr.Options{}))
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	scheme, err := newScheme()
	if err != nil {
		return err
	}
	mgr, err := ctrl.NewManager(cfg, ctrl.Options{Scheme: scheme, Metrics: server.Options{BindAddress: "0"}})
	if err != nil {
		return err
	}
	if err := reconcilerOf(mgr).SetupWithManager(ctx, mgr); err != nil {
		return err
	}
	return mgr.Start(ctx)
}

// process is a controller in a process of its own.
type process struct {
	*testing.T
	cmd    *exec.Cmd
	stderr strings.Builder
}

// spawn starts a controller in a process of its own, which ends with the test.
func (c *cluster) spawn(t *testing.T) *process {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	p := &process{T: t, cmd: exec.CommandContext(context.Background(), self)}
	p.cmd.Env = append(os.Environ(), kubeconfigEnv+"="+c.Kubeconfig(rig.UserController))
	p.cmd.Stderr = &p.stderr
	stdin, err := p.cmd.StdinPipe()
	if err == nil {
		err = p.cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(stdin.Close(), p.cmd.Wait()); err != nil || t.Failed() {
			t.Logf("the controller: %v\n%s", err, tail(p.stderr.String(), 4000))
		}
	})
	return p
}

func tail(s string, n int) string { return s[max(0, len(s)-n):] }

// clockTick is the unit of processor time in /proc, which is fixed on Linux.
const clockTick = 10 * time.Millisecond

// busy returns how much processor time the process has used.
func (p *process) busy() time.Duration {
	p.Helper()
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.cmd.Process.Pid))
	if err != nil {
		p.Fatal(err)
	}
	// The name, in parentheses, may have blanks; user and system time are fields 14 and 15.
	fields := strings.Fields(string(raw[strings.LastIndexByte(string(raw), ')')+1:]))
	var ticks int64
	for _, f := range fields[11:13] {
		n, err := strconv.ParseInt(f, 10, 64)
		if err != nil {
			p.Fatal(err)
		}
		ticks += n
	}
	return time.Duration(ticks) * clockTick
}
