// SPDX-License-Identifier: Apache-2.0

package pods_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"
	v1 "kubevirt.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/virtloom/virtloom/domain/cgroup"
	"github.com/virtloom/virtloom/domain/deviceplugin"
	"github.com/virtloom/virtloom/domain/hostdevice"
	"github.com/virtloom/virtloom/internal/realcluster"
	"github.com/virtloom/virtloom/internal/refcluster"
	"github.com/virtloom/virtloom/internal/rig"
)

const (
	// cards are PCI devices that a folder claims to be there; puzzle is a resource whose provider hands out what is no address.
	cards, puzzle = corev1.ResourceName("virtloom.test/card"), corev1.ResourceName("virtloom.test/puzzle")
	// cardNumber is the number of the character devices in the place of the cards' IOMMU groups: that of /dev/loop-control, which the
	// machine has and no guest may open. vfioNumber is that of /dev/vfio/vfio.
	cardNumber, vfioNumber = 237, 196
	plugins                = "/var/lib/kubelet/device-plugins"
)

// cardGroups are the IOMMU groups of the cards, with their addresses.
var cardGroups = map[string]string{"977": "0000:65:00.0", "978": "0000:66:00.0"}

// TestDevices_Host: host devices that a device plugin offers, here that of package hostdevice in the place of another provider, as this
// machine has no such hardware: of a card the kubelet and the agent make all that a hypervisor needs, up to libvirt, which refuses it. A card
// that is unhealthy keeps a VMI from being scheduled, for a reason that names the resource, until it is back. All of that survives the
// kubelet.
func TestDevices_Host(t *testing.T) {
	nightly(t)
	c := cluster(t)
	n := c.Nodes[0]
	gates(t, "HostDevices")
	permitCards(t, c)
	makeCards(t, n)
	offerCards(t, n)
	allocatable(t, c, n, cards, 2)

	first := create(t, newGuest("card", withDevice(cards)))
	// The machine has no IOMMU. That is the last question, when all else is there.
	first.awaitCondition("host PCI devices")
	pod := first.onlyPod()
	own := first.cardIn(pod)
	if st := first.inContainer(pod, "stat -c '%u:%g %t:%T' dev/vfio/"+own+" dev/vfio/vfio"); st != fmt.Sprintf("107:107 a:%x\n107:107 a:%x\n", cardNumber, vfioNumber) {
		t.Errorf("the devices of the container are %q", st)
	}
	char := func(minor int64) cgroup.Rule {
		return cgroup.Rule{Kind: cgroup.Char, Major: 10, Minor: minor, Access: cgroup.All}
	}
	first.vmi.Status.NodeName = n.Name()
	first.opens(char(cardNumber), char(vfioNumber))

	// The other card is unhealthy.
	other := map[string]string{"977": "978", "978": "977"}[own]
	onNode(t, n, "rm /dev/vfio/"+other)
	allocatable(t, c, n, cards, 1)
	second := create(t, newGuest("waiting", withDevice(cards)))
	must(t, refcluster.Await(t.Context(), patience, "the second VMI to wait for a card", func(context.Context) error {
		if said := explain(t, c.Rig, "vmi", second.key.String()); !strings.Contains(said, "Insufficient "+string(cards)) {
			return fmt.Errorf("explain says %s", said)
		}
		return nil
	}))

	must(t, n.KillKubelet())
	first.restore(n.StartKubelet)
	allocatable(t, c, n, cards, 1)
	onNode(t, n, fmt.Sprintf("mknod /dev/vfio/%s c 10 %d", other, cardNumber))
	allocatable(t, c, n, cards, 2)
	second.awaitCondition("host PCI devices")
	if got := second.cardIn(second.onlyPod()); got != other {
		t.Errorf("the second VMI has card %s, want %s", got, other)
	}

	third := create(t, newGuest("puzzled", withDevice(puzzle)))
	third.awaitCondition(`"card-7", which is not a PCI address`)
}

// withDevice requests one device of a resource.
func withDevice(resource corev1.ResourceName) func(*v1.VirtualMachineInstance) {
	return func(vmi *v1.VirtualMachineInstance) {
		vmi.Spec.Domain.Devices.HostDevices = []v1.HostDevice{{Name: "device", DeviceName: string(resource)}}
		vmi.Spec.EvictionStrategy = ptr.To(v1.EvictionStrategyNone) // it cannot move
	}
}

// permitCards permits the resources of the test, whose provider is not virtloom's agent.
func permitCards(t *testing.T, c *realcluster.Cluster) {
	t.Helper()
	set := func(p *v1.PermittedHostDevices) {
		kv := &v1.KubeVirt{}
		must(t, c.Client.Get(context.Background(), client.ObjectKey{Namespace: "kubevirt", Name: "kubevirt"}, kv))
		was := kv.DeepCopy()
		kv.Spec.Configuration.PermittedHostDevices = p
		must(t, c.Client.Patch(context.Background(), kv, client.MergeFrom(was)))
	}
	p := permitted()
	for i := range p.PciHostDevices {
		p.PciHostDevices[i].ExternalResourceProvider = true
	}
	set(p)
	t.Cleanup(func() { set(nil) })
}

func permitted() *v1.PermittedHostDevices {
	return &v1.PermittedHostDevices{PciHostDevices: []v1.PciHostDevice{
		{PCIVendorSelector: "10de:2204", ResourceName: string(cards)}, {PCIVendorSelector: "ffff:ffff", ResourceName: string(puzzle)},
	}}
}

// makeCards makes the device nodes of the cards on the node, in memory that other nodes do not see. The folder that it is mounted at is the
// machine's.
func makeCards(t *testing.T, n *rig.KubeletNode) {
	t.Helper()
	const folder = "/dev/vfio"
	made := os.Mkdir(folder, 0o755)
	if made != nil && !errors.Is(made, os.ErrExist) {
		t.Fatal(made)
	}
	script := fmt.Sprintf("mount -t tmpfs -o mode=755 cards %s && mknod %[1]s/vfio c 10 %d", folder, vfioNumber)
	for group := range cardGroups {
		script += fmt.Sprintf(" && mknod %s/%s c 10 %d", folder, group, cardNumber)
	}
	onNode(t, n, script)
	t.Cleanup(func() {
		onNode(t, n, "umount "+folder)
		if made == nil {
			must(t, os.Remove(folder))
		}
	})
}

// onNode runs a script as root of a node, in clean-ups too.
func onNode(t *testing.T, n *rig.KubeletNode, script string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if out, err := n.Command(ctx, "sh", "-c", script).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v: %s", script, err, out)
	}
}

// offerCards offers the cards to the kubelet of a node until the test is over, and the puzzle.
func offerCards(t *testing.T, n *rig.KubeletNode) {
	t.Helper()
	sys := t.TempDir()
	for group, address := range cardGroups {
		dir := filepath.Join(sys, "bus/pci/devices", address)
		must(t, os.MkdirAll(dir, 0o755))
		must(t, errors.Join(os.WriteFile(filepath.Join(dir, "vendor"), []byte("0x10de\n"), 0o600), os.WriteFile(filepath.Join(dir, "device"), []byte("0x2204\n"), 0o600),
			os.Symlink("../../../bus/pci/drivers/vfio-pci", filepath.Join(dir, "driver")), os.Symlink("../../../kernel/iommu_groups/"+group, filepath.Join(dir, "iommu_group"))))
	}
	kv := &v1.KubeVirt{}
	kv.Spec.Configuration.PermittedHostDevices = permitted()
	folder, root := n.HostPath(plugins), n.HostPath("/")
	offers := &hostdevice.Offers{Host: hostdevice.Host{Sys: sys}, Folder: folder, Root: root,
		Settings: func(context.Context) (*v1.KubeVirt, error) { return kv, nil }}
	bad := &deviceplugin.Plugin{Folder: folder, Root: root, Device: deviceplugin.Device{Name: string(puzzle), Units: []deviceplugin.Unit{
		{ID: "7", Nodes: []string{"/dev/vfio/vfio"}, Variable: "PCI_RESOURCE_VIRTLOOM_TEST_PUZZLE", Values: []string{"card-7"}}}}}
	ctx, end := context.WithCancel(context.Background())
	over := make(chan error, 2)
	go func() { over <- offers.Start(ctx) }()
	go func() { over <- bad.Start(ctx) }()
	t.Cleanup(func() {
		end()
		must(t, errors.Join(<-over, <-over))
	})
}

// allocatable waits until the kubelet of a node says so.
func allocatable(t *testing.T, c *realcluster.Cluster, n *rig.KubeletNode, name corev1.ResourceName, want int64) {
	t.Helper()
	must(t, refcluster.Await(t.Context(), patience, fmt.Sprintf("%d of %s on %s", want, name, n.Name()), func(ctx context.Context) error {
		node := &corev1.Node{}
		if err := c.Client.Get(ctx, client.ObjectKey{Name: n.Name()}, node); err != nil {
			return err
		}
		if got := node.Status.Allocatable[name]; got.Cmp(*resource.NewQuantity(want, resource.DecimalSI)) != 0 {
			return fmt.Errorf("there are %s, in all %v", got.String(), node.Status.Capacity)
		}
		return nil
	}))
}

// awaitCondition waits until a condition of the VMI has a message with the text.
func (s *scene) awaitCondition(text string) {
	s.Helper()
	s.awaitStatus("a condition to say "+text, func(vmi *v1.VirtualMachineInstance) error {
		for _, c := range vmi.Status.Conditions {
			if strings.Contains(c.Message, text) {
				s.Logf("%s is %s: %s", c.Type, c.Status, c.Message)
				return nil
			}
		}
		return fmt.Errorf("it is %s, conditions %+v", vmi.Status.Phase, vmi.Status.Conditions)
	})
}

// onlyPod returns the launcher Pod of the VMI.
func (s *scene) onlyPod() *corev1.Pod {
	s.Helper()
	pods, err := s.pods(s.Context())
	must(s.T, err)
	if len(pods) != 1 {
		s.Fatalf("there are %d Pods", len(pods))
	}
	return &pods[0]
}

// inContainer runs a script as root of the node, in the root of the launcher's container, whose first process is $PID.
func (s *scene) inContainer(pod *corev1.Pod, script string) string {
	s.Helper()
	processes, err := s.c.Processes(s.Context(), pod, "compute")
	must(s.T, err)
	pid := ""
	for line := range strings.Lines(strings.Join(processes[:min(1, len(processes))], "")) {
		_, _ = fmt.Sscanf(line, "Pid: %s", &pid)
	}
	out, err := s.c.Node(pod.Spec.NodeName).Command(s.Context(), "sh", "-c", "PID="+pid+"; cd /proc/$PID/root && "+script).CombinedOutput()
	if err != nil {
		s.Fatalf("%s: %v: %s", script, err, out)
	}
	return string(out)
}

// cardIn returns the IOMMU group of the card that a launcher has, and checks that its container knows the address.
func (s *scene) cardIn(pod *corev1.Pod) (group string) {
	s.Helper()
	list := strings.Fields(s.inContainer(pod, "ls dev/vfio"))
	if len(list) != 2 || list[1] != "vfio" || cardGroups[list[0]] == "" {
		s.Fatalf("in the container's /dev/vfio are %q", list)
	}
	want := "PCI_RESOURCE_VIRTLOOM_TEST_CARD=" + cardGroups[list[0]]
	if env := s.inContainer(pod, `tr '\0' '\n' </proc/$PID/environ`); !strings.Contains(env, want+"\n") {
		s.Errorf("the environment lacks %s:\n%s", want, env)
	}
	return list[0]
}
