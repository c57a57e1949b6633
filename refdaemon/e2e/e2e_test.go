// SPDX-License-Identifier: Apache-2.0

package e2e_test

import (
	"context"
	"embed"
	"errors"
	"flag"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	v1 "kubevirt.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/internal/refcluster"
	"github.com/virtloom/virtloom/internal/rig"
	"github.com/virtloom/virtloom/internal/rig/rigtest"
)

// patience is how long a test waits for what must happen. It bounds a failure,
// not a success.
const patience = 3 * time.Minute

// full runs what takes too long for continuous integration: "make nightly ONLY=migrations".
var full = flag.Bool("full", false, "run all rows about live migration, which takes half an hour")

// long leaves a test to nightly runs, where others show the same of the daemons, or unit tests of the decision.
func long(t *testing.T) {
	t.Helper()
	if !*full {
		t.Skip("run by make nightly")
	}
}

// shared is the cluster all tests of the package run on, one after the other.
var shared struct {
	sync.Once
	err        error
	cluster    *refcluster.Cluster
	controller *rig.Program
	agents     map[string]*rig.Program
}

func TestMain(m *testing.M) {
	code := m.Run()
	if c := shared.cluster; c != nil {
		if code != 0 {
			c.Rig.Keep()
			fmt.Println("the logs of the rig are in", c.Rig.Dir())
		}
		if err := c.Stop(context.Background()); err != nil {
			fmt.Println(err)
			code = 1
		}
		if left, err := refcluster.Leftovers(c.Rig.Dir()); code == 0 && (err != nil || len(left) > 0) {
			fmt.Println("left behind:", left, err)
			code = 1
		}
	}
	os.Exit(code)
}

// cluster returns the shared cluster with every daemon running.
func cluster(t *testing.T) *refcluster.Cluster {
	t.Helper()
	rigtest.Need(t)
	shared.Do(func() { shared.err = start() })
	if shared.err != nil {
		t.Fatal(shared.err)
	}
	if err := shared.cluster.Alive(); err != nil {
		t.Fatal(err)
	}
	return shared.cluster
}

func start() error {
	ctx := context.Background()
	c, err := refcluster.Start(ctx)
	if err != nil {
		return err
	}
	shared.cluster, shared.agents = c, map[string]*rig.Program{}
	if shared.controller, err = c.StartController(); err != nil {
		return err
	}
	for _, n := range c.Nodes {
		if shared.agents[n.Name()], err = c.StartAgent(n); err != nil {
			return err
		}
	}
	return errors.Join(c.AwaitAgents(ctx, patience), c.Apply(ctx, manifests, "testdata/cluster.yaml"))
}

// crashController kills the controller and starts another.
func crashController(t *testing.T, c *refcluster.Cluster, between func(), flags ...string) {
	t.Helper()
	c.Forget(shared.controller)
	must(t, shared.controller.Kill())
	between()
	var err error
	shared.controller, err = c.StartController(flags...)
	must(t, err)
}

// crashAgent kills the agent of a node and starts another.
func crashAgent(t *testing.T, c *refcluster.Cluster, node string, between func()) {
	t.Helper()
	c.Forget(shared.agents[node])
	must(t, shared.agents[node].Kill())
	between()
	var err error
	shared.agents[node], err = c.StartAgent(c.Node(node))
	must(t, err)
}

// scene is one guest and what is needed to watch it.
type scene struct {
	*testing.T
	c   *refcluster.Cluster
	key types.NamespacedName
	vmi *v1.VirtualMachineInstance
	con *refcluster.Console
}

// manifests are those of a guest on hypervisor nodes.
//
//go:embed testdata/*.yaml
var manifests embed.FS

// example returns the guest of the manifests.
func example(t *testing.T) *v1.VirtualMachineInstance {
	t.Helper()
	raw, err := manifests.ReadFile("testdata/guest.yaml")
	must(t, err)
	vmi := &v1.VirtualMachineInstance{}
	must(t, yaml.UnmarshalStrict(raw, vmi))
	return vmi
}

// newGuest returns the guest of the manifests, without its shared disk, under
// the name of the test.
func newGuest(t *testing.T, name string, change ...func(*v1.VirtualMachineInstance)) *v1.VirtualMachineInstance {
	t.Helper()
	vmi := example(t)
	vmi.Name = name
	vmi.Spec.Volumes = vmi.Spec.Volumes[1:]
	vmi.Spec.Domain.Devices.Disks = vmi.Spec.Domain.Devices.Disks[1:]
	for _, c := range change {
		c(vmi)
	}
	return vmi
}

// diskOfItsOwn gives a guest a disk that only its node has, so that it travels.
func diskOfItsOwn(vmi *v1.VirtualMachineInstance) {
	vmi.Spec.Volumes = append(vmi.Spec.Volumes, v1.Volume{Name: "own", VolumeSource: v1.VolumeSource{
		EmptyDisk: &v1.EmptyDiskSource{Capacity: resource.MustParse("8Mi")}}})
	vmi.Spec.Domain.Devices.Disks = append(vmi.Spec.Domain.Devices.Disks, v1.Disk{Name: "own",
		DiskDevice: v1.DiskDevice{Disk: &v1.DiskTarget{Bus: v1.DiskBusVirtio}}})
}

// create creates a guest and deletes it when the test is over.
func create(t *testing.T, c *refcluster.Cluster, vmi *v1.VirtualMachineInstance) *scene {
	t.Helper()
	must(t, c.Client.Create(t.Context(), vmi))
	s := &scene{T: t, c: c, key: client.ObjectKeyFromObject(vmi), vmi: vmi}
	s.con = c.Follow(t.Context(), vmi.UID)
	t.Cleanup(func() {
		ctx := context.Background()
		must(t, client.IgnoreNotFound(c.Client.Delete(ctx, vmi.DeepCopy())))
		if err := c.AwaitGone(ctx, vmi.DeepCopy(), patience); err != nil {
			t.Error(err)
		}
		s.nothingLeft(ctx)
	})
	return s
}

// boot creates a guest and waits until it runs and beats.
func boot(t *testing.T, c *refcluster.Cluster, vmi *v1.VirtualMachineInstance) *scene {
	t.Helper()
	s := create(t, c, vmi)
	s.await(v1.Running)
	_, err := s.con.AwaitTick(t.Context(), "", 0, patience)
	must(t, err)
	return s
}

func (s *scene) await(phase v1.VirtualMachineInstancePhase) {
	s.Helper()
	var err error
	s.vmi, err = s.c.AwaitPhase(s.Context(), s.key, phase, patience)
	must(s.T, err)
}

// beats waits for n more heartbeats, on the node if one is named.
func (s *scene) beats(node string, n int) {
	s.Helper()
	highest := 0
	for _, t := range s.con.Ticks() {
		highest = max(highest, t.N)
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

// single waits until exactly one Pod and one domain of the guest are there.
func (s *scene) single() {
	s.Helper()
	must(s.T, s.c.AwaitSingle(s.Context(), s.key, patience, func(_, _ int, err error) error { return err }))
}

// nothingLeft waits until neither Pod nor domain nor file of the guest exists.
func (s *scene) nothingLeft(ctx context.Context) {
	s.Helper()
	must(s.T, s.c.Await(ctx, patience, "nothing to be left of "+s.key.String(), func(ctx context.Context) error {
		var pods corev1.PodList
		err := s.c.Client.List(ctx, &pods, client.InNamespace(s.key.Namespace), client.MatchingLabels{v1.CreatedByLabel: string(s.vmi.UID)})
		if err != nil || len(pods.Items) > 0 {
			return fmt.Errorf("%d Pods: %w", len(pods.Items), err)
		}
		domains, err := s.c.Domains(ctx)
		if err != nil {
			return err
		}
		for _, d := range domains {
			for _, n := range s.c.Nodes {
				if d == n.Name()+"/"+domain.Name(s.key.Namespace, s.key.Name) {
					return fmt.Errorf("domain %s", d)
				}
			}
		}
		for _, n := range s.c.Nodes {
			if _, err := os.Stat(n.HostPath(n.StateDir() + "/guests/" + string(s.vmi.UID))); err == nil {
				return fmt.Errorf("files on %s", n.Name())
			}
		}
		return nil
	}))
}

// migrate creates a migration of the guest.
func (s *scene) migrate(name string, change ...func(*v1.VirtualMachineInstanceMigration)) *v1.VirtualMachineInstanceMigration {
	s.Helper()
	m := &v1.VirtualMachineInstanceMigration{
		ObjectMeta: metav1.ObjectMeta{Namespace: s.key.Namespace, Name: name},
		Spec:       v1.VirtualMachineInstanceMigrationSpec{VMIName: s.key.Name},
	}
	for _, c := range change {
		c(m)
	}
	must(s.T, s.c.Client.Create(s.Context(), m))
	s.Cleanup(func() {
		ctx := context.Background()
		must(s.T, client.IgnoreNotFound(s.c.Client.Delete(ctx, m.DeepCopy())))
		if err := s.c.AwaitGone(ctx, m.DeepCopy(), patience); err != nil {
			s.Error(err)
		}
	})
	return m
}

func (s *scene) awaitMigration(m *v1.VirtualMachineInstanceMigration, phase v1.VirtualMachineInstanceMigrationPhase) {
	s.Helper()
	must(s.T, s.c.AwaitMigration(s.Context(), client.ObjectKeyFromObject(m), phase, patience))
}

// rest ends a migration, however it goes on, and checks that the guest is there
// once, runs and never missed a beat.
func (s *scene) rest(m *v1.VirtualMachineInstanceMigration) {
	s.Helper()
	must(s.T, s.c.Client.Delete(s.Context(), m.DeepCopy()))
	must(s.T, s.c.AwaitGone(s.Context(), m.DeepCopy(), patience))
	s.single()
	s.await(v1.Running)
	s.beats(s.vmi.Status.NodeName, 5)
	s.unbroken()
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
