// SPDX-License-Identifier: Apache-2.0

package rig_test

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/virtloom/virtloom/internal/rig"
	"github.com/virtloom/virtloom/internal/rig/rigtest"
)

// ownerVariable makes the test binary start a rig, in the folder it names, and wait to be killed.
const ownerVariable = "VIRTLOOM_TEST_OWNER"

// kubeletVariable makes it start a node with a kubelet as well, of the name that it has.
const kubeletVariable = "VIRTLOOM_TEST_KUBELET"

func TestMain(m *testing.M) {
	if dir := os.Getenv(ownerVariable); dir != "" {
		own(dir)
		return
	}
	os.Exit(m.Run())
}

// own is the life of a process that starts a rig and never stops it.
func own(dir string) {
	node := os.Getenv(kubeletVariable)
	r, err := rig.Start(context.Background(), rig.Options{Dir: dir, Kubelets: node != "", Bare: node != ""})
	if err == nil && node != "" {
		_, err = r.StartKubeletNode(context.Background(), rig.KubeletNodeOptions{Name: node})
	}
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println(r.Dir())
	select {}
}

func TestRig_DiesWithOwner(t *testing.T) {
	rigtest.Need(t)
	for name, signal := range map[string]syscall.Signal{
		"killed":      syscall.SIGKILL,
		"interrupted": syscall.SIGINT,
	} {
		t.Run(name, func(t *testing.T) {
			parent := t.TempDir()
			owner := exec.Command(os.Args[0])
			owner.Env = append(os.Environ(), ownerVariable+"="+parent)
			owner.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
			out, err := owner.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := owner.Start(); err != nil {
				t.Fatal(err)
			}
			line, err := bufio.NewReader(out).ReadString('\n')
			dir := strings.TrimSuffix(line, "\n")
			if err != nil || filepath.Dir(dir) != parent {
				t.Fatalf("owner says %q, %v; want a folder in %s", line, err, parent)
			}
			if n := len(processesOf(t, dir)); n != len(rigPrograms) {
				t.Errorf("%d processes while the owner lives, want %d", n, len(rigPrograms))
			}
			// The whole process group, as a terminal does it.
			if err := syscall.Kill(-owner.Process.Pid, signal); err != nil {
				t.Fatal(err)
			}
			if err := owner.Wait(); err == nil {
				t.Error("the owner ended as if nothing had happened")
			}
			waitNothingLeft(t, parent, dir)
		})
	}
}

// rigPrograms are the processes of a rig without hypervisor nodes.
var rigPrograms = []string{"etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kwok"}

func waitNothingLeft(t *testing.T, parent, dir string) {
	t.Helper()
	var left []string
	err := wait.PollUntilContextTimeout(t.Context(), interval, patience, true, func(context.Context) (bool, error) {
		left = slices.Concat(processesOf(t, dir), foldersOf(t, parent, dir), tracesOf(t, dir))
		return len(left) == 0, nil
	})
	if err != nil {
		t.Errorf("left behind: %v: %v", left, err)
	}
}

// processesOf lists the processes that carry the mark of the rig in dir.
func processesOf(t *testing.T, dir string) []string {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/environ")
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, file := range files {
		environ, err := os.ReadFile(file)
		if err != nil {
			continue // it has ended, or belongs to another user
		}
		if bytes.Contains(append([]byte{0}, environ...), []byte("\x00VIRTLOOM_RIG="+dir+"\x00")) {
			found = append(found, filepath.Dir(file))
		}
	}
	return found
}

// foldersOf lists what is left of the folders of the rig in dir, made in parent.
func foldersOf(t *testing.T, parent, dir string) []string {
	t.Helper()
	var found []string
	for _, pattern := range []string{filepath.Join(parent, "*"), filepath.Join("/dev/shm", filepath.Base(dir)+"*")} {
		files, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		found = append(found, files...)
	}
	return found
}
