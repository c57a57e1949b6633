// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/domainctrl"
	"github.com/virtloom/virtloom/domain/memory"
	"github.com/virtloom/virtloom/domain/nodectrl"
	"github.com/virtloom/virtloom/domain/transport"
	"github.com/virtloom/virtloom/domain/workspace"
	"github.com/virtloom/virtloom/internal/memapi"
)

// migrationTakes is how long a guest moves that nothing disturbs.
const migrationTakes = 20 * time.Second

// address is that of all nodes, which differ by their ports.
const address = "127.0.0.1"

// drained is the time for which queued watch events are processed.
const drained = time.Second

// process is a controller or an agent that runs.
type process struct {
	// access is its way to the API server; nil for one that is real.
	access *memapi.Access
	cancel context.CancelFunc
	// ended is closed when it has ended, err is then why.
	ended chan struct{}
	err   error
	// up is closed when its caches are filled.
	up <-chan struct{}
}

// started reports whether the process is up. One that is not must not be ended: controller-runtime waits in a busy loop
// then for caches that will not be filled, and time does not pass.
func (p *process) started() bool {
	select {
	case <-p.up:
		return true
	default:
		return false
	}
}

// begin runs a manager as a process.
func begin(access *memapi.Access, mgr ctrl.Manager) *process {
	ctx, cancel := context.WithCancel(context.Background())
	p := &process{access: access, cancel: cancel, ended: make(chan struct{}), up: mgr.Elected()}
	go func() {
		p.err = mgr.Start(ctx)
		close(p.ended)
	}()
	return p
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

// kill ends the process without letting anything of it through any more. It does not wait for that. Its watches end
// before it does: client-go leaves a goroutine behind for a watch that is given up with an event in it, which would be
// taken for one of those that live.
func (p *process) kill() {
	if p.access != nil {
		p.access.Cut(true)
		time.Sleep(drained)
	}
	p.cancel()
}

// node is a node: what outlives its agent, and that.
type node struct {
	hypervisor *memory.Hypervisor
	name       string
	port       int
	root       string
	// claims is the folder with the data of all claims, which all nodes share.
	claims string
	// up says that it has power, booted when it last got it.
	up     bool
	booted time.Time
	agent  *process
	// beat is how often it gives a sign of life; zero is the default.
	beat time.Duration
	// others are all nodes.
	others []*node
}

func newNode(name string, i int, root string) *node {
	n := &node{name: name, port: 1000 + i, up: true, claims: filepath.Join(root, "claims")}
	n.root = filepath.Join(root, n.name)
	n.hypervisor = memory.New(n.name)
	n.hypervisor.MigrationTakes(migrationTakes)
	return n
}

// uri is where others find the node's hypervisor.
func (n *node) uri() string {
	return "qemu+tcp://" + net.JoinHostPort(address, strconv.Itoa(n.port)) + "/system"
}

// connect lets guests move from each node to each other.
func connect(nodes []*node) {
	for _, from := range nodes {
		from.others = nodes
		for _, to := range nodes {
			if from != to {
				from.hypervisor.Connect(to.uri(), to.hypervisor)
			}
		}
	}
}

// reachable lets guests move to the node, or not.
func (n *node) reachable(yes bool) {
	for _, from := range n.others {
		switch l := from.hypervisor.Link(n.uri()); {
		case from == n:
		case yes:
			l.Restore()
		default:
			l.Cut()
		}
	}
}

// Locate implements workspace.Claims: the data of all claims are on all nodes.
func (n *node) Locate(_ context.Context, _, name string) (workspace.Claim, error) {
	path := filepath.Join(n.claims, name)
	if _, err := os.Stat(path); err != nil {
		return workspace.Claim{}, fmt.Errorf("soak: claim %s: %w", name, err)
	}
	return workspace.Claim{Path: path, Shared: true, Bytes: claimBytes}, nil
}

// workspace is where the agent keeps the files of guests.
func (n *node) workspace() *workspace.Workspace {
	return &workspace.Workspace{
		Root: n.root, Claims: n, AllowEmulation: func(context.Context) (bool, error) { return true, nil },
	}
}

// start runs an agent on the node.
func (n *node) start(access *memapi.Access, config *rest.Config, scheme *runtime.Scheme, random *rand.Rand) error {
	if err := os.MkdirAll(n.root, 0o700); err != nil {
		return err
	}
	mgr, err := newManager(config, scheme)
	if err != nil {
		return err
	}
	caches, err := domainctrl.NewCaches(config, scheme, n.name)
	if err != nil {
		return err
	}
	r := &domainctrl.Reconciler{
		NodeName: n.name, Transport: transport.Direct{Address: address, Port: n.port}, Hypervisor: n.hypervisor, Workspace: n.workspace(),
		Client: mgr.GetClient(), APIReader: mgr.GetAPIReader(), Caches: caches, DrainWithin: -1,
		Recorder: mgr.GetEventRecorder("virtloom-node"),
	}
	if err := r.SetupWithManager(mgr); err != nil {
		return err
	}
	err = mgr.Add(&nodectrl.Heartbeat{
		NodeName: n.name, Client: mgr.GetClient(), Hypervisor: n.hypervisor, Drained: r.Drained(), Random: random.Float64,
		Every: n.beat, CPUManagerState: filepath.Join(n.root, "cpu_manager_state"),
	})
	if err != nil {
		return err
	}
	n.agent = begin(access, mgr)
	return nil
}

// die takes the node's power away: its agent and all its guests are gone at once.
func (n *node) die(ctx context.Context) error {
	n.up = false
	n.agent.kill()
	n.reachable(false)
	n.hypervisor.Reconnect()
	all, err := n.hypervisor.List(ctx)
	if err != nil {
		return err
	}
	for _, st := range all {
		for _, verb := range []domain.Verb{domain.Destroy, domain.Undefine} {
			err := errByChance
			for errors.Is(err, errByChance) { // it is no call that could fail; what may fail a few times is asked again
				err = n.hypervisor.Apply(ctx, domain.Operation{Verb: verb, Domain: st.Name})
			}
			if err != nil {
				return err
			}
		}
	}
	return nil
}
