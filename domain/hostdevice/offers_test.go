// SPDX-License-Identifier: Apache-2.0

package hostdevice_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	"golang.org/x/sys/unix"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	clocktesting "k8s.io/utils/clock/testing"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/domain/hostdevice"
	"github.com/virtloom/virtloom/internal/fakekubelet"
)

// stage is a node with devices, its kubelet, and what offers them.
type stage struct {
	tree
	root, folder string
	*fakekubelet.Kubelet
	clock *clocktesting.FakeClock
	end   func() error

	mu    sync.Mutex
	kv    *v1.KubeVirt
	fails error
	asked int
	said  []string
}

const (
	card  = "nvidia.com/GA102"
	stick = "a.example/stick"
	cards = `pciHostDevices: [{pciVendorSelector: "10de:2204", resourceName: nvidia.com/GA102}]`
	both  = cards + "\n" + `usb: [{resourceName: a.example/stick, selectors: [{vendor: 46f4, product: "0001"}]}]`
)

func newStage(t *testing.T, permitted string) *stage {
	t.Helper()
	root, folder := fakekubelet.Node(t)
	s := &stage{tree: newTree(t), root: root, folder: folder, Kubelet: fakekubelet.New(t, folder), clock: clocktesting.NewFakeClock(time.Unix(0, 0))}
	s.pci("0000:65:00.0", "10de:2204", "vfio-pci", 12, 1)
	s.pci("0000:66:00.0", "10de:2204", "vfio-pci", 13, 1)
	s.usb("1-1", "46f4:0001", 1, 2)
	for _, path := range []string{"vfio/vfio", "vfio/12", "vfio/13", "bus/usb/001/002"} {
		s.node(path)
	}
	s.permit(permitted)
	return s
}

// node makes a device node below /dev.
func (s *stage) node(path string) {
	s.t.Helper()
	if testing.Short() {
		s.t.Skip("needs root: run it without -short")
	}
	path = filepath.Join(s.root, "dev", path)
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), unix.Mknod(path, unix.S_IFCHR|0o600, int(unix.Mkdev(1, 3)))); err != nil {
		s.t.Fatalf("device nodes cannot be made; run the tests as root: %v", err)
	}
}

// permit changes the KubeVirt object; empty removes it.
func (s *stage) permit(permitted string) {
	s.t.Helper()
	var kv *v1.KubeVirt
	if permitted != "" {
		kv = &v1.KubeVirt{}
		kv.Spec.Configuration.PermittedHostDevices = permit(s.t, permitted)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.kv = kv
}

func (s *stage) settings(context.Context) (*v1.KubeVirt, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked++
	return s.kv, s.fails
}

// start offers the devices until the end of the test.
func (s *stage) start() {
	s.t.Helper()
	log := funcr.New(func(_, args string) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.said = append(s.said, args)
	}, funcr.Options{})
	ctx, cancel := context.WithCancel(logr.NewContext(s.t.Context(), log))
	o := &hostdevice.Offers{Host: s.host(), Settings: s.settings, Folder: s.folder, Root: s.root, Clock: s.clock}
	done := make(chan error, 1)
	go func() { done <- o.Start(ctx) }()
	s.end = sync.OnceValue(func() error { cancel(); return <-done })
	s.t.Cleanup(func() { _ = s.end() })
}

// look makes it look again, and waits until it has.
func (s *stage) look() {
	s.t.Helper()
	looks := func() int {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.asked
	}
	// The second look begins when the first has ended.
	for range 2 {
		before := looks()
		tick := time.NewTicker(time.Millisecond)
		defer tick.Stop()
		for deadline := time.After(30 * time.Second); looks() == before; {
			s.clock.Step(hostdevice.DefaultEvery)
			select {
			case <-tick.C:
			case <-deadline:
				s.t.Fatal("it does not look for devices")
			}
		}
	}
}

// sayings returns how often the log has a text.
func (s *stage) sayings(text string) (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, line := range s.said {
		if strings.Contains(line, text) {
			n++
		}
	}
	return n
}

func TestOffers_FollowSettings(t *testing.T) {
	s := newStage(t, "")
	s.start()
	s.look()
	if n := len(s.Requests()); n != 0 {
		t.Fatalf("%d resources are offered that nobody permits", n)
	}
	s.permit(cards)
	s.look()
	s.AwaitHealth(t, card, map[string]string{"12": api.Healthy, "13": api.Healthy})
	s.permit(both)
	s.look()
	s.AwaitHealth(t, stick, map[string]string{"1-1": api.Healthy})
	answer, err := s.Plugin(stick).Allocate(t.Context(), &api.AllocateRequest{ContainerRequests: []*api.ContainerAllocateRequest{{DevicesIds: []string{"1-1"}}}})
	if err != nil {
		t.Fatal(err)
	}
	if got := answer.ContainerResponses[0]; got.Envs["USB_RESOURCE_A_EXAMPLE_STICK"] != "1:2" || len(got.Devices) != 1 || got.Devices[0].Permissions != "mrw" {
		t.Errorf("allocated is %v", got)
	}

	s.permit(strings.Replace(both, "resourceName: nvidia.com/GA102", "resourceName: nvidia.com/GA102, externalResourceProvider: true", 1))
	s.look()
	s.AwaitEnd(t, card) // that of others may register now
	s.permit(cards)
	s.look()
	s.AwaitEnd(t, stick)
	s.AwaitHealth(t, card, map[string]string{"12": api.Healthy, "13": api.Healthy})
	if err := s.end(); err != nil {
		t.Fatal(err)
	}
	s.AwaitEnd(t, card)
	if n := len(s.Requests()); n != 3 {
		t.Errorf("%d registrations, want one for each time that a resource was permitted", n)
	}
}

// TestOffers_SettingsUnreadable: while the object cannot be read, all stays as it is.
func TestOffers_SettingsUnreadable(t *testing.T) {
	s := newStage(t, cards)
	s.start()
	s.AwaitHealth(t, card, map[string]string{"12": api.Healthy, "13": api.Healthy})
	s.mu.Lock()
	s.kv, s.fails = nil, errors.New("the API server is away")
	s.mu.Unlock()
	s.look()
	s.look()
	s.AwaitHealth(t, card, map[string]string{"12": api.Healthy, "13": api.Healthy})
	if n := s.sayings("the API server is away"); n != 1 {
		t.Errorf("it was logged %d times", n)
	}
}

// TestOffers_FollowNode: devices that are unbound, vanish, change their number or come later.
func TestOffers_FollowNode(t *testing.T) {
	s := newStage(t, both)
	s.remove("bus/usb")
	s.start()
	s.AwaitHealth(t, card, map[string]string{"12": api.Healthy, "13": api.Healthy})
	const at = "devices/pci0000:00/0000:65:00.0"
	s.link(at+"/driver", "../../../bus/pci/drivers/nvidia") // its node is still there, for another device of the group
	s.pci("0000:67:00.0", "10de:2204", "vfio-pci", 14, 0)
	s.node("vfio/14")
	s.usb("1-1", "46f4:0001", 1, 2)
	s.look()
	s.AwaitHealth(t, card, map[string]string{"12": api.Unhealthy, "13": api.Healthy, "14": api.Healthy})
	s.AwaitHealth(t, stick, map[string]string{"1-1": api.Healthy})
	s.link(at+"/driver", "../../../bus/pci/drivers/vfio-pci")
	s.look()
	s.AwaitHealth(t, card, map[string]string{"12": api.Healthy, "13": api.Healthy, "14": api.Healthy})

	// The node of a device is watched all the time.
	if err := os.Remove(filepath.Join(s.root, "dev/vfio/13")); err != nil {
		t.Fatal(err)
	}
	s.AwaitHealth(t, card, map[string]string{"12": api.Healthy, "13": api.Unhealthy, "14": api.Healthy})

	// The stick is removed and connected again.
	if err := os.Remove(filepath.Join(s.root, "dev/bus/usb/001/002")); err != nil {
		t.Fatal(err)
	}
	s.remove("bus/usb/devices/1-1")
	s.look()
	s.AwaitHealth(t, stick, map[string]string{"1-1": api.Unhealthy})
	s.usb("1-1", "46f4:0001", 1, 9)
	s.node("bus/usb/001/009")
	s.look()
	s.AwaitHealth(t, stick, map[string]string{"1-1": api.Healthy})
	answer, err := s.Plugin(stick).Allocate(t.Context(), &api.AllocateRequest{ContainerRequests: []*api.ContainerAllocateRequest{{DevicesIds: []string{"1-1"}}}})
	if err != nil || answer.ContainerResponses[0].Envs["USB_RESOURCE_A_EXAMPLE_STICK"] != "1:9" {
		t.Errorf("%v, %v", answer, err)
	}
}

func TestOffers_KubeletRestart(t *testing.T) {
	s := newStage(t, both)
	s.start()
	for i := range 3 {
		if i > 0 {
			s.Kubelet = fakekubelet.New(t, s.folder)
		}
		s.AwaitHealth(t, card, map[string]string{"12": api.Healthy, "13": api.Healthy})
		s.AwaitHealth(t, stick, map[string]string{"1-1": api.Healthy})
		s.End()
	}
}

// TestOffers_BadEntry: an entry that is invalid is logged once, and the others are offered.
func TestOffers_BadEntry(t *testing.T) {
	s := newStage(t, both+"\n"+`mediatedDevices: [{mdevNameSelector: x, resourceName: devices.kubevirt.io/kvm}]`)
	s.start()
	s.AwaitHealth(t, card, map[string]string{"12": api.Healthy, "13": api.Healthy})
	s.AwaitHealth(t, stick, map[string]string{"1-1": api.Healthy})
	s.look()
	if n := s.sayings("mediatedDevices[0]"); n != 1 {
		t.Errorf("the entry was mentioned %d times: %s", n, fmt.Sprint(s.said))
	}
	if _, offered := s.List("devices.kubevirt.io/kvm"); offered {
		t.Error("the resource of every node is offered")
	}
}
