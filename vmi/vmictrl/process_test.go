// SPDX-License-Identifier: Apache-2.0

package vmictrl_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/go-logr/logr/funcr"
	"k8s.io/client-go/tools/clientcmd"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/virtloom/virtloom/internal/rig"
)

// orderEnv contains the order of a controller process.
const orderEnv = "VMICTRL_TEST_ORDER"

// order is the configuration of a controller in a process of its own.
type order struct {
	Kubeconfig string
	Namespaces []string
	Death      death
}

// death is when a process kills itself; never, if Write is empty.
type death struct {
	Write string
	// Answered kills the process when the server has answered that write, but before the controller reads it, instead of
	// right before it is sent.
	Answered bool
}

func (d death) String() string {
	if d.Answered {
		return "after " + d.Write
	}
	return "before " + d.Write
}

func TestMain(m *testing.M) {
	text, ordered := os.LookupEnv(orderEnv)
	if !ordered {
		os.Exit(m.Run())
	}
	var o order
	err := json.Unmarshal([]byte(text), &o)
	if err == nil {
		err = o.run()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// run runs the controller. It ends with its standard input, so that it does not outlive the test.
func (o order) run() error {
	cfg, err := clientcmd.BuildConfigFromFlags("", o.Kubeconfig)
	if err != nil {
		return err
	}
	cfg.QPS = -1
	cfg.Wrap((&writes{death: o.Death, namespaces: o.Namespaces, times: map[string]int{}}).wrap)
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
	mgr, r, err := newController(cfg, scheme, ctrl.Log, o.Namespaces...)
	if err != nil {
		return err
	}
	if err := r.SetupWithManager(ctx, mgr); err != nil {
		return err
	}
	return mgr.Start(ctx)
}

// writes wraps every request of the process, prints the writes in its namespaces on standard output, and kills the process at the
// ordered one. Those to nodes are not its own: a test beside it may have a node that every controller marks.
type writes struct {
	death      death
	namespaces []string
	mu         sync.Mutex
	times      map[string]int // guarded by mu
}

func (w *writes) concerns(req *http.Request) bool {
	return req.Method != http.MethodGet && slices.ContainsFunc(w.namespaces, func(ns string) bool {
		return strings.Contains(req.URL.Path, "/namespaces/"+ns+"/")
	})
}

func (w *writes) wrap(next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(req *http.Request) (*http.Response, error) {
		if !w.concerns(req) {
			return next.RoundTrip(req)
		}
		name := w.name(req)
		fmt.Println(name)
		if name == w.death.Write && !w.death.Answered {
			die()
		}
		resp, err := next.RoundTrip(req)
		if name == w.death.Write && err == nil {
			die()
		}
		return resp, err
	})
}

// name returns the write and its ordinal.
func (w *writes) name(req *http.Request) string {
	what := req.Method + " " + strings.Join(resourceIn(req.URL.Path), "/")
	w.mu.Lock()
	defer w.mu.Unlock()
	w.times[what]++
	return fmt.Sprintf("%s %d", what, w.times[what])
}

// resourceIn returns the resource in a path of the API, and the subresource if there is one.
func resourceIn(path string) []string {
	_, in, namespaced := strings.Cut(path, "/namespaces/")
	parts := strings.Split(in, "/") // namespace, resource, name, subresource
	switch {
	case !namespaced || len(parts) < 2:
		return []string{path}
	case len(parts) < 4:
		return parts[1:2]
	default:
		return []string{parts[1], parts[3]}
	}
}

func die() {
	_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	select {} // the signal may take a moment
}

// process is a controller in a process of its own.
type process struct {
	t     *testing.T
	death death
	cmd   *exec.Cmd
	stdin io.Closer
	ended chan struct{}

	// Valid after ended is closed:
	err    error
	writes []string
	stderr strings.Builder
}

// spawn starts a controller in a process of its own.
func (c *cluster) spawn(t *testing.T, o order) *process {
	t.Helper()
	o.Kubeconfig = c.Kubeconfig(rig.UserController)
	text, err := json.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	p := &process{t: t, death: o.Death, cmd: exec.CommandContext(t.Context(), self), ended: make(chan struct{})}
	p.cmd.Env = append(os.Environ(), orderEnv+"="+string(text))
	p.cmd.Stderr = &p.stderr
	stdout, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if p.stdin, err = p.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(p.ended)
		for lines := bufio.NewScanner(stdout); lines.Scan(); {
			p.writes = append(p.writes, lines.Text())
		}
		p.err = p.cmd.Wait()
	}()
	t.Cleanup(p.stop)
	return p
}

// stop ends the process, unless it has ended, and returns when it has. It fails the test if the process failed.
func (p *process) stop() {
	_ = p.stdin.Close()
	<-p.ended
	if p.err != nil && !p.killed() {
		p.t.Errorf("the controller ended with %v:\n%s", p.err, p.stderr.String())
	}
}

// over reports whether the process has ended.
func (p *process) over() bool {
	select {
	case <-p.ended:
		return true
	default:
		return false
	}
}

// killed reports, after the end, whether it was by signal 9.
func (p *process) killed() bool {
	var failed *exec.ExitError
	if !errors.As(p.err, &failed) {
		return false
	}
	status, ok := failed.Sys().(syscall.WaitStatus)
	return ok && status.Signaled() && status.Signal() == syscall.SIGKILL
}
