// SPDX-License-Identifier: Apache-2.0

package launcher_test

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/fleet"
	"github.com/virtloom/virtloom/domain/launcher"
	"github.com/virtloom/virtloom/domain/memory"
)

// kubelet is a folder of Pods and a connector for it.
type kubelet struct {
	testing.TB
	root  string
	fleet *fleet.Fleet
	conn  *launcher.Connector
	mu    sync.Mutex
	made  map[types.UID]launcher.Guest // guarded by mu; the VMI of each Pod at the API server
}

// makeFor sets the controller of a Pod at the API server.
func (k *kubelet) makeFor(uid types.UID, g launcher.Guest) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.made[uid] = g
}

func newKubelet(t testing.TB) *kubelet {
	root, err := os.MkdirTemp("", "pods") // short enough for a socket's address
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(root); err != nil {
			t.Error(err)
		}
	})
	k := &kubelet{TB: t, root: root, fleet: &fleet.Fleet{}, made: map[types.UID]launcher.Guest{}}
	k.conn = &launcher.Connector{Pods: k.root, NodeName: "here", Find: k.find, Fleet: k.fleet}
	t.Cleanup(func() {
		if err := errors.Join(k.conn.Close(), k.fleet.Close()); err != nil {
			t.Error(err)
		}
	})
	return k
}

// find is the Pod as the API server has it: without a VMI it is a tenant's own.
func (k *kubelet) find(_ context.Context, uid types.UID) (*corev1.Pod, error) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "tenant", Name: "pod-" + string(uid), UID: uid}}
	k.mu.Lock()
	g, made := k.made[uid]
	k.mu.Unlock()
	if made {
		owner := &v1.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{Name: g.Name, UID: g.UID}}
		pod.Namespace, pod.OwnerReferences = g.Namespace, []metav1.OwnerReference{*metav1.NewControllerRef(owner, v1.VirtualMachineInstanceGroupVersionKind)}
	}
	return pod, nil
}

// sockets makes the folder of a Pod's sockets.
func (k *kubelet) sockets(uid string) string {
	k.Helper()
	dir := filepath.Join(k.root, uid, "volumes", "kubernetes.io~empty-dir", "sockets")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		k.Fatal(err)
	}
	return dir
}

// run starts the launcher of a VMI in a Pod.
func (k *kubelet) run(uid string, g launcher.Guest) *pod {
	k.Helper()
	h := memory.New(uid)
	k.makeFor(types.UID(uid), g)
	return newPodOf(k, k.sockets(uid), func() *launcher.Server { return &launcher.Server{Hypervisor: h, Guest: g} })
}

// vmi is the VMI of these tests with Pods here and on another node.
func vmi(here ...types.UID) *v1.VirtualMachineInstance {
	out := &v1.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{Namespace: guest.Namespace, Name: guest.Name, UID: guest.UID}}
	out.Status.ActivePods = map[types.UID]string{"elsewhere": "there"}
	for _, uid := range here {
		out.Status.ActivePods[uid] = "here"
	}
	return out
}

func TestConnector_FindsLauncherOfVMI(t *testing.T) {
	for name, c := range map[string]struct {
		prepare func(k *kubelet)
		vmi     *v1.VirtualMachineInstance
		pod     *corev1.Pod
		want    error    // nil: it is found
		says    []string // parts of the error
	}{
		"by status.activePods":                   {prepare: func(k *kubelet) { k.run("p1", guest) }, vmi: vmi("p1")},
		"beside a Pod that has none":             {prepare: func(k *kubelet) { k.run("p1", guest) }, vmi: vmi("p0", "p1")},
		"by its Pod":                             {prepare: func(k *kubelet) { k.run("p1", guest) }, vmi: vmi(), pod: &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "p1"}}},
		"no Pod here yet":                        {vmi: vmi(), want: domain.ErrNotReady, says: []string{"activePods", "here"}},
		"no folder yet":                          {vmi: vmi("p1"), want: domain.ErrNotReady, says: []string{"p1"}},
		"no socket yet":                          {prepare: func(k *kubelet) { k.sockets("p1") }, vmi: vmi("p1"), want: domain.ErrNotReady, says: []string{"p1"}},
		"its Pod has ended":                      {prepare: func(k *kubelet) { k.run("p1", guest) }, vmi: vmi(), pod: &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "p1"}, Status: corev1.PodStatus{Phase: corev1.PodFailed}}, want: domain.ErrNotReady},
		"a launcher that boots is not there yet": {prepare: func(k *kubelet) { listen(k, filepath.Join(k.sockets("p1"), launcher.BootingSocket)) }, vmi: vmi("p1"), want: domain.ErrNotReady},
		"beside a Pod whose launcher was killed": {
			prepare: func(k *kubelet) {
				k.run("p1", guest)
				k.makeFor("p0", guest)
				abandon(k, filepath.Join(k.sockets("p0"), launcher.ReadySocket))
			}, vmi: vmi("p0", "p1"),
		},
		"two sockets": {
			prepare: func(k *kubelet) { k.run("p1", guest); k.run("p2", guest) },
			vmi:     vmi("p1", "p2"), want: errAny, says: []string{"p1", "p2"},
		},
		"the launcher of another guest": {
			prepare: func(k *kubelet) { k.run("p1", launcher.Guest{Namespace: "ns", Name: "other", UID: "u"}) },
			vmi:     vmi("p1"), want: domain.ErrInvalid, says: []string{"ns/other", "p1"},
		},
		"a UID that is a path": {vmi: vmi("../p1"), want: domain.ErrInvalid},
		"a symbolic link instead of the socket": {
			prepare: func(k *kubelet) {
				k.run("p2", guest)
				k.makeFor("p1", guest)
				link(k, "p2", filepath.Join(k.sockets("p1"), launcher.ReadySocket))
			},
			vmi: vmi("p1"), want: domain.ErrInvalid, says: []string{"symbolic link"},
		},
		"a symbolic link instead of a folder": {
			prepare: func(k *kubelet) {
				k.run("p2", guest)
				k.makeFor("p1", guest)
				if err := os.Remove(k.sockets("p1")); err != nil {
					k.Fatal(err)
				}
				if err := os.Symlink(k.sockets("p2"), filepath.Join(k.root, "p1", "volumes", "kubernetes.io~empty-dir", "sockets")); err != nil {
					k.Fatal(err)
				}
			},
			vmi: vmi("p1"), want: domain.ErrInvalid, says: []string{"symbolic link"},
		},
		"a file instead of the socket": {
			prepare: func(k *kubelet) {
				k.makeFor("p1", guest)
				if err := os.WriteFile(filepath.Join(k.sockets("p1"), launcher.ReadySocket), nil, 0o600); err != nil {
					k.Fatal(err)
				}
			},
			vmi: vmi("p1"), want: domain.ErrInvalid, says: []string{"not a socket"},
		},
		"a socket that nobody serves": {
			prepare: func(k *kubelet) {
				k.makeFor("p1", guest)
				l := listen(k, filepath.Join(k.sockets("p1"), launcher.ReadySocket))
				l.SetUnlinkOnClose(false)
				l.Close()
			},
			vmi: vmi("p1"), want: domain.ErrNotReady,
		},
	} {
		t.Run(name, func(t *testing.T) {
			k := newKubelet(t)
			if c.prepare != nil {
				c.prepare(k)
			}
			h, err := k.conn.Connect(t.Context(), c.vmi, c.pod)
			if c.want == nil {
				again, err2 := k.conn.Connect(t.Context(), c.vmi, c.pod)
				member, joined := k.fleet.Member(guest.Domain())
				if err != nil || err2 != nil || h != again || !joined || member != h {
					t.Errorf("%v, %v: %v and %v; member of the fleet: %v", err, err2, h, again, member)
				}
				return
			}
			if err == nil || !errors.Is(c.want, errAny) && !errors.Is(err, c.want) {
				t.Fatalf("%v, want %v", err, c.want)
			}
			for _, part := range c.says {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("%v: does not say %q", err, part)
				}
			}
		})
	}
}

func TestConnector_PIDWhileConnected(t *testing.T) {
	k := newKubelet(t)
	p := k.run("p1", guest)
	other := vmi("p1")
	other.UID = "another"
	if pid, err := k.conn.PID(vmi("p1")); !errors.Is(err, domain.ErrNotReady) {
		t.Errorf("before there is a connection: %d, %v", pid, err)
	}
	if _, err := k.conn.Connect(t.Context(), vmi("p1"), nil); err != nil {
		t.Fatal(err)
	}
	if pid, err := k.conn.PID(vmi("p1")); err != nil || pid != os.Getpid() {
		t.Errorf("%d, %v; want this process, which runs it", pid, err)
	}
	if pod, err := k.conn.Pod(vmi("p0", "p1")); err != nil || pod != "p1" {
		t.Errorf("Pod %s, %v", pod, err)
	}
	if pid, err := k.conn.PID(other); !errors.Is(err, domain.ErrNotReady) {
		t.Errorf("the launcher of another guest: %d, %v", pid, err)
	}
	p.kill()
	if err := os.RemoveAll(k.sockets("p1")); err != nil {
		t.Fatal(err)
	}
	if err := k.conn.Discover(t.Context()); err != nil {
		t.Fatal(err)
	}
	if pid, err := k.conn.PID(vmi("p1")); !errors.Is(err, domain.ErrNotReady) {
		t.Errorf("of one that has ended: %d, %v", pid, err)
	}
}

// errAny stands for an error without a sentinel.
var errAny = errors.New("any")

func listen(t testing.TB, path string) *net.UnixListener {
	t.Helper()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

// abandon leaves a socket without a listener.
func abandon(t testing.TB, path string) {
	t.Helper()
	l := listen(t, path)
	l.SetUnlinkOnClose(false)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
}

// link puts a symbolic link to the socket of another Pod at a path.
func link(k *kubelet, uid, path string) {
	k.Helper()
	if err := os.Symlink(filepath.Join(k.sockets(uid), launcher.ReadySocket), path); err != nil {
		k.Fatal(err)
	}
}

func TestConnector_KeepsFleetComplete(t *testing.T) {
	k := newKubelet(t)
	other := launcher.Guest{Namespace: "ns", Name: "other", UID: "u2"}
	p1 := k.run("p1", guest)
	k.run("p2", other)
	members := func(step string, want ...launcher.Guest) {
		t.Helper()
		for _, g := range []launcher.Guest{guest, other} {
			_, got := k.fleet.Member(g.Domain())
			wanted := false
			for _, w := range want {
				wanted = wanted || w == g
			}
			if got != wanted {
				t.Errorf("%s: %s is a member: %v, want %v", step, g.Name, got, wanted)
			}
		}
	}
	discover := func() {
		t.Helper()
		if err := k.conn.Discover(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	discover()
	members("both run already", guest, other)
	if err := os.RemoveAll(filepath.Join(k.root, "p2")); err != nil {
		t.Fatal(err)
	}
	discover()
	members("a Pod is gone", guest)
	p1.kill()
	if _, err := os.Stat(p1.socket()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a launcher that has ended leaves its socket: %v", err)
	}
	discover()
	members("the other launcher has ended")
	p1.start()
	discover()
	members("it is back", guest)

	// A launcher that claims the VMI of another Pod does not get it.
	k.run("p3", guest)
	if err := k.conn.Discover(t.Context()); err == nil || !strings.Contains(err.Error(), "p1") || !strings.Contains(err.Error(), "p3") {
		t.Errorf("discover: %v, want one that names both", err)
	}
	before, _ := k.fleet.Member(guest.Domain())
	h, err := k.conn.Connect(t.Context(), vmi("p3"), nil)
	if err != nil || h == before {
		t.Fatalf("connect: %v, %v", h, err)
	}
	if now, _ := k.fleet.Member(guest.Domain()); now != h {
		t.Error("whose Pod is in status.activePods does not have the guest")
	}
}

func TestConnector_LaunchersJoinAndLeave(t *testing.T) {
	k := newKubelet(t)
	events, err := k.fleet.Watch(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- k.conn.Run(ctx) }()
	becomes := func(member bool) {
		t.Helper()
		for range events { // an event follows every change of members
			if _, is := k.fleet.Member(guest.Domain()); is == member {
				return
			}
		}
		t.Fatalf("no event: a member: %v", member)
	}
	k.run("p1", guest)
	becomes(true)
	if err := os.RemoveAll(filepath.Join(k.root, "p1")); err != nil {
		t.Fatal(err)
	}
	becomes(false)
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
