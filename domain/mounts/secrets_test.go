// SPDX-License-Identifier: Apache-2.0

package mounts_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"github.com/virtloom/virtloom/domain"
)

// secretVolume is the directory of a Secret in the launcher Pod, as the kubelet makes it: the files
// of a version in a directory of their own, the link ..data to it, and a link for each file.
type secretVolume struct {
	t   *testing.T
	dir string
}

func (l *launcher) secretVolume(name string) secretVolume {
	dir := filepath.Join(l.node.Pods, string(podUID), "volumes/kubernetes.io~secret", name)
	l.mkdir(dir)
	return secretVolume{l.node.t, dir}
}

// write replaces the version.
func (v secretVolume) write(version string, files map[string]string) {
	v.t.Helper()
	err := os.Mkdir(filepath.Join(v.dir, version), 0o755)
	for name, content := range files {
		err = errors.Join(err, os.WriteFile(filepath.Join(v.dir, version, name), []byte(content), 0o600))
		_ = os.Symlink("..data/"+name, filepath.Join(v.dir, name)) // it may be there
	}
	link := filepath.Join(v.dir, "..data_tmp")
	if err = errors.Join(err, os.Symlink(version, link), os.Rename(link, filepath.Join(v.dir, "..data"))); err != nil {
		v.t.Fatal(err)
	}
}

func (l *launcher) secret(t *testing.T, volume string) (map[string]string, error) {
	t.Helper()
	data, err := l.Secret(t.Context(), l.vmi, volume)
	out := map[string]string{}
	for name, b := range data {
		out[name] = string(b)
	}
	return out, err
}

func TestSecret_OfKubelet(t *testing.T) {
	l := newLauncher(t)
	if _, err := l.secret(t, "conf"); !errors.Is(err, domain.ErrNotReady) {
		t.Errorf("there is no volume: %v", err)
	}
	v := l.secretVolume("conf")
	if _, err := l.secret(t, "conf"); !errors.Is(err, domain.ErrNotReady) {
		t.Errorf("the kubelet has not written it: %v", err)
	}
	for version, want := range map[string]map[string]string{
		"..1": {}, // it is optional, and does not exist
		"..2": {"userdata": "#cloud-config", ".hidden": "x"},
		"..3": {"userdata": "#cloud-config 2"},
		"..4": {"large": strings.Repeat("x", corev1.MaxSecretSize)},
	} {
		v.write(version, want)
		if got, err := l.secret(t, "conf"); err != nil || !cmp.Equal(want, got) {
			t.Errorf("%s: %v, %v", version, got, err)
		}
	}
}

func TestServiceAccount_OfKubelet(t *testing.T) {
	l := newLauncher(t)
	projected := func(name string) secretVolume {
		v := secretVolume{l.node.t, filepath.Join(l.node.Pods, string(podUID), "volumes/kubernetes.io~projected", name)}
		l.mkdir(v.dir)
		return v
	}
	projected("mine").write("..1", map[string]string{"token": "of another audience"})
	if got, err := l.Secret(t.Context(), l.vmi, ""); !errors.Is(err, domain.ErrNotReady) {
		t.Errorf("%q, %v", got, err)
	}
	projected("kube-api-access-x7k2p").write("..1", map[string]string{"token": "eyJ"})
	if got, err := l.Secret(t.Context(), l.vmi, ""); err != nil || string(got["token"]) != "eyJ" || len(got) != 1 {
		t.Errorf("%q, %v", got, err)
	}
	projected("kube-api-access-other").write("..1", map[string]string{"token": "eyK"})
	if got, err := l.Secret(t.Context(), l.vmi, ""); !errors.Is(err, domain.ErrInvalid) {
		t.Errorf("%q, %v", got, err)
	}
}

func TestSecret_Refused(t *testing.T) {
	l := newLauncher(t)
	outside := filepath.Join(t.TempDir(), "shadow")
	if err := os.WriteFile(outside, []byte("root"), 0o600); err != nil {
		t.Fatal(err)
	}
	in := func(name string) (secretVolume, string) {
		v := l.secretVolume(name)
		v.write("..1", map[string]string{"a": "b"})
		return v, filepath.Join(v.dir, "..1", "key")
	}
	_, link := in("link")
	_, pipe := in("pipe")
	_, folder := in("folder")
	large, _ := in("large")
	away := l.secretVolume("away")
	half := strings.Repeat("x", corev1.MaxSecretSize/2)
	large.write("..2", map[string]string{"a": half, "b": half, "c": "x"})
	if err := errors.Join(os.Symlink(outside, link), unix.Mkfifo(pipe, 0o600), os.Mkdir(folder, 0o755),
		os.Symlink(filepath.Dir(outside), filepath.Join(away.dir, "..data"))); err != nil {
		t.Fatal(err)
	}
	for _, volume := range []string{"link", "pipe", "folder", "large", "../../..", "a/b"} {
		if got, err := l.secret(t, volume); !errors.Is(err, domain.ErrInvalid) || len(got) > 0 {
			t.Errorf("volume %q: %v, %v", volume, got, err)
		}
	}
	if got, err := l.secret(t, "away"); err == nil {
		t.Errorf("a link out of the volume: %v", got)
	}
}
