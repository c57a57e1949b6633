// SPDX-License-Identifier: Apache-2.0

package pods_test

import (
	"context"
	"flag"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	v1 "kubevirt.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/virtloom/virtloom/internal/realcluster"
	"github.com/virtloom/virtloom/internal/refcluster"
	"github.com/virtloom/virtloom/internal/rig"
	"github.com/virtloom/virtloom/internal/rig/rigtest"
)

const (
	// patience bounds the wait for what must happen; it bounds a failure, not a success.
	patience = 3 * time.Minute
	// stopTimeout bounds the end of the cluster.
	stopTimeout = 2 * time.Minute
	// namespace is a tenant's, of Pod Security level restricted.
	namespace = "tenant"
	// port is where guests answer.
	port = 8080
	// launcherUser runs guests in their Pods.
	launcherUser = 107
)

// full runs what takes too long for continuous integration: "make nightly ONLY=pods".
var full = flag.Bool("full", false, "run all tests on real nodes, which takes half an hour")

// nightly skips a test without -full.
func nightly(t *testing.T) {
	t.Helper()
	if !*full {
		t.Skip("run by make nightly")
	}
}

// shared is the cluster of all tests, which run one after the other.
var shared struct {
	sync.Once
	err     error
	cluster *realcluster.Cluster
	// bare is what there was on the nodes before virtloom was installed.
	bare nodeTraces
}

func TestMain(m *testing.M) {
	log.SetLogger(logr.Discard())
	code := m.Run()
	if c := shared.cluster; c != nil {
		if err := noneForbidden(c); err != nil {
			fmt.Println("FAIL:", err)
			code = 1
		}
		if code != 0 {
			c.Rig.Keep()
			fmt.Println("the logs of the rig are in", c.Rig.Dir())
		}
		ctx, cancel := context.WithTimeout(context.Background(), stopTimeout)
		if err := c.Stop(ctx); err != nil {
			fmt.Println(err)
			code = 1
		}
		cancel()
		if left, err := refcluster.Leftovers(c.Rig.Dir()); code == 0 && (err != nil || len(left) > 0) {
			fmt.Println("left behind:", left, err)
			code = 1
		}
	}
	os.Exit(code)
}

// cluster returns the cluster, with virtloom installed.
func cluster(t *testing.T) *realcluster.Cluster {
	t.Helper()
	rigtest.Need(t)
	shared.Do(func() { shared.err = start() })
	if shared.err != nil {
		t.Fatal(shared.err)
	}
	return shared.cluster
}

func start() error {
	ctx := context.Background()
	c, err := realcluster.Start(ctx, realcluster.Options{Rig: rig.Options{KeepLogs: os.Getenv("KEEP_LOGS") != ""}})
	if err != nil {
		return err
	}
	shared.cluster = c
	if shared.bare, err = traces(c); err != nil {
		return err
	}
	within, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if err := c.Install(within); err != nil {
		return err
	}
	return prepare(ctx, c)
}

// prepare creates the namespace of the tenant and the configuration of the cluster.
func prepare(ctx context.Context, c *realcluster.Cluster) error {
	kv := &v1.KubeVirt{ObjectMeta: metav1.ObjectMeta{Name: "kubevirt", Namespace: "kubevirt"}}
	kv.Spec.Configuration.DeveloperConfiguration = &v1.DeveloperConfiguration{UseEmulation: true, DisabledFeatureGates: []string{"ImageVolume"}}
	// A tenth of a processor, and less, keeps a container from starting for more than a second; that would be most of a test's time.
	for _, kind := range []v1.SupportContainerType{v1.ContainerDisk, v1.GuestConsoleLog} {
		kv.Spec.Configuration.SupportContainerResources = append(kv.Spec.Configuration.SupportContainerResources, v1.SupportContainerResources{
			Type: kind, Resources: v1.ResourceRequirementsWithoutClaims{Limits: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1")}},
		})
	}
	tenant := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace, Labels: map[string]string{
		"pod-security.kubernetes.io/enforce": "restricted", "pod-security.kubernetes.io/enforce-version": "latest",
	}}}
	for _, o := range []client.Object{&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: kv.Namespace}}, tenant, kv} {
		if err := c.Client.Create(ctx, o); err != nil && !apierrors.IsAlreadyExists(err) {
			return err
		}
	}
	return c.AwaitSchedulable(ctx, patience)
}

// hostName is the name that cloud-init gives the guest of newGuest's VMI of that name. Without cloud-init the guest would have the VMI's
// own, from DHCP.
func hostName(vmi string) string { return vmi + "-by-cloud-init" }

// newGuest returns a VMI that boots the kernel of the guest image, has a containerDisk, a cloud-init disk and the Pod's network, beats
// on its console, asks for its address and answers HTTP.
func newGuest(name string, change ...func(*v1.VirtualMachineInstance)) *v1.VirtualMachineInstance {
	vmi := &v1.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace, Labels: map[string]string{"guest": name}}}
	virtio := v1.DiskDevice{Disk: &v1.DiskTarget{Bus: v1.DiskBusVirtio}}
	s := &vmi.Spec
	s.Architecture, s.TerminationGracePeriodSeconds = "amd64", ptr.To(int64(20))
	s.EvictionStrategy = ptr.To(v1.EvictionStrategyLiveMigrate)
	s.Domain.CPU = &v1.CPU{Cores: 1, Model: "Nehalem"}
	s.Domain.Memory = &v1.Memory{Guest: ptr.To(resource.MustParse("128Mi"))}
	s.Domain.Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("10m")}
	s.Domain.Firmware = &v1.Firmware{KernelBoot: &v1.KernelBoot{
		KernelArgs: fmt.Sprintf("console=ttyS0 quiet no_timer_check hb=0.1 dhcp=1 serve=%d", port),
		Container:  &v1.KernelBootContainer{Image: "virtloom.test/guest-kernel:1", KernelPath: "/boot/vmlinux", InitrdPath: "/boot/initrd", ImagePullPolicy: corev1.PullIfNotPresent},
	}}
	d := &s.Domain.Devices
	d.AutoattachGraphicsDevice, d.LogSerialConsole, d.Rng = ptr.To(false), ptr.To(true), &v1.Rng{}
	d.Disks = []v1.Disk{{Name: "image", DiskDevice: virtio}, {Name: "cloudinit", DiskDevice: virtio}}
	d.Interfaces = []v1.Interface{{Name: "default", InterfaceBindingMethod: v1.InterfaceBindingMethod{Masquerade: &v1.InterfaceMasquerade{}}}}
	s.Networks = []v1.Network{*v1.DefaultPodNetwork()}
	s.Volumes = []v1.Volume{
		{Name: "image", VolumeSource: v1.VolumeSource{ContainerDisk: &v1.ContainerDiskSource{Image: rig.DiskImage, ImagePullPolicy: corev1.PullIfNotPresent}}},
		{Name: "cloudinit", VolumeSource: v1.VolumeSource{CloudInitNoCloud: &v1.CloudInitNoCloudSource{UserData: "#cloud-config\nhostname: " + hostName(name) + "\n"}}},
	}
	for _, f := range change {
		f(vmi)
	}
	return vmi
}

// scene is one VMI and what is needed to watch it.
type scene struct {
	*testing.T
	c   *realcluster.Cluster
	key types.NamespacedName
	vmi *v1.VirtualMachineInstance
	con *refcluster.Console
}

// boot creates a VMI, waits until its guest beats, and removes it when the test is over.
func boot(t *testing.T, vmi *v1.VirtualMachineInstance) *scene {
	t.Helper()
	return bootAll(t, vmi)[0]
}

// bootAll does so with several VMIs at once.
func bootAll(t *testing.T, vmis ...*v1.VirtualMachineInstance) []*scene {
	t.Helper()
	scenes := make([]*scene, 0, len(vmis))
	for _, vmi := range vmis {
		scenes = append(scenes, create(t, vmi))
	}
	t.Cleanup(func() {
		for _, s := range scenes { // each waits for its own end afterwards
			must(t, client.IgnoreNotFound(s.c.Client.Delete(context.Background(), s.vmi.DeepCopy())))
		}
	})
	for _, s := range scenes {
		s.awaitRunning("")
		if _, err := s.con.AwaitTick(t.Context(), "", 0, patience); err != nil {
			t.Fatal(err)
		}
	}
	return scenes
}

// create creates a VMI, follows its console, and removes it when the test is over.
func create(t *testing.T, vmi *v1.VirtualMachineInstance) *scene {
	t.Helper()
	must(t, cluster(t).Client.Create(t.Context(), vmi))
	return follow(t, vmi)
}

// follow follows the console of a VMI that exists, and removes the VMI when the test is over.
func follow(t *testing.T, vmi *v1.VirtualMachineInstance) *scene {
	t.Helper()
	c := cluster(t)
	ctx, stop := context.WithCancel(context.Background())
	s := &scene{T: t, c: c, key: client.ObjectKeyFromObject(vmi), vmi: vmi, con: c.Follow(ctx, vmi)}
	t.Cleanup(func() {
		defer stop()
		if t.Failed() {
			t.Logf("%s\n%s", c.Describe(context.Background(), s.key), strings.Join(tail(s.con.Lines(), 30), "\n"))
		}
		s.remove()
	})
	return s
}

func tail(lines []string, n int) []string { return lines[max(0, len(lines)-n):] }

// remove deletes the VMI and checks that nothing is left of it.
func (s *scene) remove() {
	s.Helper()
	ctx := context.Background()
	must(s.T, client.IgnoreNotFound(s.c.Client.Delete(ctx, s.vmi.DeepCopy())))
	err := refcluster.Await(ctx, patience, "nothing to be left of "+s.key.String(), func(ctx context.Context) error {
		err := s.c.Client.Get(ctx, s.key, &v1.VirtualMachineInstance{})
		if !apierrors.IsNotFound(err) {
			return fmt.Errorf("the VMI is still there: %w", err)
		}
		pods, err := s.pods(ctx)
		if err == nil && len(pods) > 0 {
			err = fmt.Errorf("there are %d Pods", len(pods))
		}
		if err == nil {
			err = s.noneOfPods(ctx)
		}
		return err
	})
	if err != nil {
		s.Error(err)
	}
}

// pods lists the launcher Pods of the VMI.
func (s *scene) pods(ctx context.Context) ([]corev1.Pod, error) {
	var list corev1.PodList
	err := s.c.Client.List(ctx, &list, client.InNamespace(s.key.Namespace), client.MatchingLabels{v1.CreatedByLabel: string(s.vmi.UID)})
	return list.Items, err
}

// awaitRunning waits until the VMI runs, on the node if one is named.
func (s *scene) awaitRunning(node string) {
	s.Helper()
	must(s.T, refcluster.Await(s.Context(), patience, s.key.String()+" to run", func(ctx context.Context) error {
		vmi := &v1.VirtualMachineInstance{}
		if err := s.c.Client.Get(ctx, s.key, vmi); err != nil {
			return err
		}
		s.vmi = vmi
		if vmi.Status.Phase != v1.Running || node != "" && vmi.Status.NodeName != node {
			return fmt.Errorf("it is %s on %q, conditions %+v", vmi.Status.Phase, vmi.Status.NodeName, vmi.Status.Conditions)
		}
		return nil
	}))
}

// beats waits for n more heartbeats, on the node if one is named.
func (s *scene) beats(node string, n int) {
	s.Helper()
	highest := 0
	for _, tick := range s.con.Ticks() {
		highest = max(highest, tick.N)
	}
	_, err := s.con.AwaitTick(s.Context(), node, highest+n, patience)
	must(s.T, err)
}

// unbroken checks that every heartbeat came once and in order.
func (s *scene) unbroken() {
	s.Helper()
	longest, err := s.con.Check()
	must(s.T, err)
	s.Logf("%d heartbeats, the longest pause was %v", len(s.con.Ticks()), longest)
}

// other returns the other node.
func (s *scene) other() string {
	for _, n := range s.c.Nodes {
		if n.Name() != s.vmi.Status.NodeName {
			return n.Name()
		}
	}
	return ""
}

// says waits for a line of the console that contains the text.
func (s *scene) says(text string) string {
	s.Helper()
	found := ""
	must(s.T, refcluster.Await(s.Context(), patience, fmt.Sprintf("the console to say %q", text), func(context.Context) error {
		for _, line := range s.con.Lines() {
			if strings.Contains(line, text) {
				found = line
				return nil
			}
		}
		return fmt.Errorf("it says %q", tail(s.con.Lines(), 10))
	}))
	return found
}

// kubectl runs kubectl as administrator, in clean-ups too, and returns what it prints.
func kubectl(args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	out, err := shared.cluster.Rig.Kubectl(ctx, args...).CombinedOutput()
	return string(out), err
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
