// SPDX-License-Identifier: Apache-2.0

package workspace_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/convert"
	"github.com/virtloom/virtloom/domain/internal/domainfixture"
)

// pods are the disks that Pods hold for VMIs, by the name of the volume.
type pods struct {
	disks    map[string]string
	retained []string
	released []types.UID
	err      error
}

func (p *pods) Retain(_ context.Context, _ types.UID, names []string) error {
	p.retained = slices.Sorted(slices.Values(names))
	return p.err
}

func (p *pods) ContainerDisk(_ context.Context, vmi *v1.VirtualMachineInstance, index int) (convert.DiskSource, error) {
	path, err := p.find(vmi.Spec.Volumes[index].Name)
	return convert.DiskSource{Path: path, Inside: inPod(path)}, err
}

func (p *pods) Hotplugged(_ context.Context, _ *v1.VirtualMachineInstance, v *v1.Volume) (convert.DiskSource, error) {
	path, err := p.find(v.Name)
	return convert.DiskSource{Path: path, Inside: inPod(path), Format: "raw"}, err
}

// inPod is the path in the Pod of a path of the node.
func inPod(path string) string { return "/pod/" + filepath.Base(path) }

func (p *pods) find(name string) (string, error) {
	if path, found := p.disks[name]; found {
		return path, nil
	}
	return "", fmt.Errorf("%s: %w", name, domain.ErrNotReady)
}

func (p *pods) Release(_ context.Context, uid types.UID) error {
	p.released = append(p.released, uid)
	return p.err
}

func TestContainerDisk_PodImageIsOverlayBase(t *testing.T) {
	needQemuImg(t)
	w := newWorkspace(t)
	held := &pods{}
	w.Volumes, w.Images = held, nil
	vmi := guest("uid-1", containerDisk("img"))
	_, err := w.Prepare(t.Context(), vmi, kvmHost)
	domainfixture.Says(t, err, "ns/guest", "spec.volumes[0].containerDisk", "not ready")
	if !errors.Is(err, domain.ErrNotReady) {
		t.Errorf("a container that is not up yet: %v", err)
	}
	image := filepath.Join(t.TempDir(), "disk_0.img")
	if err := os.WriteFile(image, []byte(strings.Repeat("\x00", 1<<20)), 0o600); err != nil {
		t.Fatal(err)
	}
	held.disks = map[string]string{"root": image}
	d := prepare(t, w, vmi).Disks["root"]
	if b := d.Backing; d.Format != "qcow2" || b == nil || b.Path != image || b.Inside != inPod(image) || b.Format != "raw" || !b.ReadOnly {
		t.Errorf("%+v, backing %+v", d, d.Backing)
	}
}

func TestContainerDisk_ImageStoreFirst(t *testing.T) {
	needQemuImg(t)
	w := newWorkspace(t)
	w.Volumes, w.Images = &pods{}, images{"img": {"/disk/a.img": "raw"}}
	if b := prepare(t, w, guest("uid-1", containerDisk("img"))).Disks["root"].Backing; b == nil || b.Inside != "" {
		t.Errorf("backing %+v", b)
	}
}

func TestHotplug_VolumeOfPodIsNotNodeClaim(t *testing.T) {
	w := newWorkspace(t)
	held := &pods{}
	w.Volumes, w.Claims = held, nil
	vmi := guest("uid-1", claimed("c"))
	vmi.Spec.Volumes[0].PersistentVolumeClaim.Hotpluggable = true
	vmi.Status.VolumeStatus = []v1.VolumeStatus{{Name: "data", Phase: v1.HotplugVolumeAttachedToNode, HotplugVolume: &v1.HotplugVolumeStatus{AttachPodUID: "pod"}}}
	if d, found := prepare(t, w, vmi).Disks["data"]; found {
		t.Errorf("it has arrived: %+v", d)
	}
	path := filepath.Join(t.TempDir(), "data.img")
	if err := os.WriteFile(path, make([]byte, 4096), 0o600); err != nil {
		t.Fatal(err)
	}
	held.disks = map[string]string{"data": path}
	for _, phase := range []v1.VolumePhase{v1.HotplugVolumeAttachedToNode, v1.VolumeReady} {
		vmi.Status.VolumeStatus[0].Phase = phase
		if d := prepare(t, w, vmi).Disks["data"]; d.Path != path || d.Inside != inPod(path) {
			t.Errorf("%s: %+v", phase, d)
		}
	}
}

// wires are the networks of a test.
type wires struct {
	pods
	links map[string]convert.Link
	err   error
}

func (w *wires) Prepare(context.Context, *v1.VirtualMachineInstance) (map[string]convert.Link, error) {
	return w.links, w.err
}

func TestHostDevices_OfNode(t *testing.T) {
	w := newWorkspace(t)
	devices, err := map[string][]convert.HostDevice{"a.example/card": {{PCI: "0000:65:00.0"}}}, fmt.Errorf("its launcher: %w", domain.ErrNotReady)
	w.HostDevices = func(*v1.VirtualMachineInstance) (map[string][]convert.HostDevice, error) { return devices, err }
	vmi := guest("uid-1")
	_, failed := w.Prepare(t.Context(), vmi, kvmHost)
	domainfixture.Says(t, failed, "ns/guest", "host devices", "its launcher")
	if !errors.Is(failed, domain.ErrNotReady) {
		t.Errorf("%v", failed)
	}
	err = nil
	if f := prepare(t, w, vmi); len(f.Devices["a.example/card"]) != 1 {
		t.Errorf("devices are %v", f.Devices)
	}
}

func TestNetworks_NotReady(t *testing.T) {
	w := newWorkspace(t)
	n := &wires{err: fmt.Errorf("waiting for network %q: %w", "blue", domain.ErrNotReady)}
	w.Networks = n
	vmi := guest("uid-1")
	vmi.Spec.Networks = []v1.Network{{Name: "blue"}}
	_, err := w.Prepare(t.Context(), vmi, kvmHost)
	domainfixture.Says(t, err, "ns/guest", `waiting for network "blue"`)
	if !errors.Is(err, domain.ErrNotReady) {
		t.Errorf("%v", err)
	}
	// An error about a field is passed on as it is.
	named := &convert.Error{Object: "VirtualMachineInstance ns/guest", Field: "spec.networks[0].multus", Reason: "is not supported", Remedy: "remove it", Err: domain.ErrUnsupported}
	w.Networks = &wires{err: fmt.Errorf("network: %w", named)}
	if _, err := w.Prepare(t.Context(), vmi, kvmHost); err != error(named) { //nolint:errorlint // the same
		t.Errorf("%v", err)
	}
	w.Networks = n
	if owners, err := w.Owners(); err != nil || len(owners) != 1 {
		t.Errorf("what was begun for the guest would not be released: %v, %v", owners, err)
	}
	n.links, n.err = map[string]convert.Link{"blue": {Tap: "tap1"}}, nil
	f := prepare(t, w, vmi)
	if f.Links["blue"].Tap != "tap1" || f.Bridges["blue"] != "br0" {
		t.Errorf("%+v, %+v", f.Links, f.Bridges)
	}
}

func TestClear_ReleasesBeforeRemovingFiles(t *testing.T) {
	w := newWorkspace(t)
	held, n := &pods{err: errors.New("still mounted")}, &wires{}
	w.Volumes, w.Networks = held, n
	prepare(t, w, guest("uid-1"))
	if err := w.Clear(t.Context(), "uid-1"); !errors.Is(err, held.err) {
		t.Fatalf("%v", err)
	}
	if _, err := os.Stat(w.Dir("uid-1")); err != nil {
		t.Errorf("the files are gone, and nobody knows of the guest any more: %v", err)
	}
	held.err = nil
	if err := errors.Join(w.Clear(t.Context(), "uid-1"), w.Clear(t.Context(), "")); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(w.Dir("uid-1")); err == nil {
		t.Error("the files are left")
	}
	want := []types.UID{"uid-1", "uid-1"}
	if !cmp.Equal(want, held.released) || !cmp.Equal(want, n.released) {
		t.Errorf("released %v and %v", held.released, n.released)
	}
	if err := w.Clear(t.Context(), "../x"); err == nil {
		t.Error("a path names a guest")
	}
}
