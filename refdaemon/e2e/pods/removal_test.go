// SPDX-License-Identifier: Apache-2.0

package pods_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	v1 "kubevirt.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/virtloom/virtloom/internal/realcluster"
	"github.com/virtloom/virtloom/internal/refcluster"
	"github.com/virtloom/virtloom/internal/rig"
	"github.com/virtloom/virtloom/refdaemon/config"
)

// removed is when virtloom was last being removed: its rights go before those who have them.
var removed period

// period begins and ends; one without an end lasts.
type period struct{ from, to time.Time }

func (p period) during(t time.Time) bool {
	return !p.from.IsZero() && !t.Before(p.from) && (p.to.IsZero() || !t.After(p.to))
}

// TestUninstall_LeavesNothing: once the guests are deleted, virtloom can be, and then neither the cluster nor a node has anything of it or
// of its guests. It can be installed again, and runs guests.
func TestUninstall_LeavesNothing(t *testing.T) {
	c := cluster(t)
	var vmis []*v1.VirtualMachineInstance
	for _, n := range c.Nodes {
		vmis = append(vmis, newGuest("last-"+n.Name(), on(n.Name())))
	}
	for _, s := range bootAll(t, vmis...) {
		s.remove()
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if removed.to.IsZero() {
			removed.to = time.Now()
		}
		must(t, errors.Join(c.Install(ctx), prepare(ctx, c)))
	})
	removed = period{from: time.Now()}
	uninstall(t)
	must(t, refcluster.Await(t.Context(), patience, "the nodes to be as they were", func(context.Context) error {
		now, err := traces(c)
		if err != nil {
			return err
		}
		for node, all := range now {
			for trace := range all {
				if !shared.bare[node][trace] && !ofKubelet.MatchString(trace) {
					err = errors.Join(err, fmt.Errorf("%s has %s", node, trace))
				}
			}
		}
		return err
	}))
	removed.to = time.Now()
}

// on keeps a VMI to a node.
func on(node string) func(*v1.VirtualMachineInstance) {
	return func(vmi *v1.VirtualMachineInstance) {
		vmi.Spec.NodeSelector = map[string]string{corev1.LabelHostname: node}
	}
}

// uninstall deletes virtloom as the documentation says, and checks that the API has nothing of it then.
func uninstall(t *testing.T) {
	t.Helper()
	objects, err := config.Manifests()
	must(t, err)
	var manifests bytes.Buffer
	for _, o := range objects {
		text, err := yaml.Marshal(o)
		must(t, err)
		fmt.Fprintf(&manifests, "---\n%s", text)
	}
	must(t, refcluster.Await(t.Context(), patience, "the guard to go", func(context.Context) error {
		if out, err := kubectl("delete", "namespace/virtloom-node", "--dry-run=server"); err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	}))
	cmd := shared.cluster.Rig.Kubectl(t.Context(), "delete", "--ignore-not-found", "-f", "-")
	cmd.Stdin = &manifests
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	guard := &unstructured.Unstructured{}
	guard.SetAPIVersion("admissionregistration.k8s.io/v1")
	guard.SetKind("ValidatingAdmissionPolicy")
	guard.SetName("virtloom-guests-exist")
	for _, o := range append(objects, guard) {
		if err := shared.cluster.Client.Get(t.Context(), client.ObjectKeyFromObject(o), o); !apierrors.IsNotFound(err) {
			t.Errorf("%s %s is left: %v", o.GetKind(), o.GetName(), err)
		}
	}
}

// ofKubelet matches the control groups that a kubelet keeps from its first Pod on.
var ofKubelet = regexp.MustCompile(`^control group .*/kubepods(/burstable|/besteffort)?$`)

// nodeTraces are the things on nodes that software leaves, by node: mounts, control groups, processes, interfaces, sockets of device
// plugins and folders of Pods.
type nodeTraces map[string]map[string]bool

// traces finds what there is on the nodes.
func traces(c *realcluster.Cluster) (nodeTraces, error) {
	found := nodeTraces{}
	for _, n := range c.Nodes {
		all := map[string]bool{}
		found[n.Name()] = all
		for _, find := range []func(*rig.KubeletNode, map[string]bool) error{mounts, groups, processes, interfaces, kubeletFiles} {
			if err := find(n, all); err != nil {
				return nil, fmt.Errorf("%s: %w", n.Name(), err)
			}
		}
	}
	return found, nil
}

func mounts(n *rig.KubeletNode, all map[string]bool) error {
	table, err := os.ReadFile(n.HostPath("/proc/1/mountinfo"))
	for line := range strings.Lines(string(table)) {
		if fields := strings.Fields(line); len(fields) > 4 {
			all["mount "+fields[4]] = true
		}
	}
	return err
}

func groups(n *rig.KubeletNode, all map[string]bool) error {
	root := n.HostPath("/sys/fs/cgroup")
	return filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil // ended meanwhile
		case err == nil && d.IsDir():
			all["control group "+strings.TrimPrefix(path, root)] = true
		}
		return err
	})
}

func processes(n *rig.KubeletNode, all map[string]bool) error {
	files, err := filepath.Glob(n.HostPath("/proc") + "/[0-9]*/comm")
	for _, file := range files {
		if name, err := os.ReadFile(file); err == nil { // it may have ended meanwhile
			all["process "+strings.TrimSpace(string(name))] = true
		}
	}
	return err
}

func interfaces(n *rig.KubeletNode, all map[string]bool) error {
	table, err := os.ReadFile(n.HostPath("/proc/1/net/dev"))
	for line := range strings.Lines(string(table)) {
		if name, _, found := strings.Cut(line, ":"); found {
			all["interface "+strings.TrimSpace(name)] = true
		}
	}
	return err
}

func kubeletFiles(n *rig.KubeletNode, all map[string]bool) error {
	plugins, err := filepath.Glob(n.HostPath("/var/lib/kubelet/device-plugins") + "/*.sock")
	pods, podsErr := filepath.Glob(n.HostPath("/var/lib/kubelet/pods") + "/*")
	for _, path := range slices.Concat(plugins, pods) {
		all["file "+filepath.Base(path)] = true
	}
	return errors.Join(err, podsErr)
}

// ofPod matches what a kubelet and a container runtime name after a Pod, its mounts and its control groups.
var ofPod = regexp.MustCompile(`pods?/?([0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12})`)

// noneOfPods reports mounts and control groups of Pods that do not exist any more.
func (s *scene) noneOfPods(ctx context.Context) error {
	var list corev1.PodList
	if err := s.c.Client.List(ctx, &list); err != nil {
		return err
	}
	exists := map[string]bool{}
	for i := range list.Items {
		exists[string(list.Items[i].UID)] = true
	}
	for _, n := range s.c.Nodes {
		all := map[string]bool{}
		if err := errors.Join(mounts(n, all), groups(n, all)); err != nil {
			return err
		}
		for _, trace := range slices.Sorted(maps.Keys(all)) {
			if uid := ofPod.FindStringSubmatch(trace); uid != nil && !exists[uid[1]] {
				return fmt.Errorf("%s has %s of a Pod that is gone", n.Name(), trace)
			}
		}
	}
	return nil
}
