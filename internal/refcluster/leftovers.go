// SPDX-License-Identifier: Apache-2.0

package refcluster

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// networkAtStart is what the machine had when this program began.
var networkAtStart, errAtStart = network()

// network lists the machine's interfaces and the names of its network namespaces.
func network() ([]string, error) {
	links, err := net.Interfaces()
	if err != nil {
		return nil, err
	}
	var found []string
	for _, l := range links {
		found = append(found, "interface "+l.Name)
	}
	names, err := os.ReadDir("/run/netns")
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	for _, n := range names {
		found = append(found, "network namespace "+n.Name())
	}
	return found, nil
}

// Leftovers lists the leftovers on the machine of a rig that ran in dir: processes that name it, mounts below it, its control groups, and
// the folder itself; and the interfaces and named network namespaces that the machine has and did not have when this program began.
// Other namespaces end with the last process in them.
func Leftovers(dir string) ([]string, error) {
	var left []string
	if _, err := os.Stat(dir); err == nil {
		left = append(left, "folder "+dir)
	}
	for _, find := range []func(string) ([]string, error){mountsOf, groupsOf, processesOf, newNetwork} {
		found, err := find(dir)
		if err != nil {
			return left, fmt.Errorf("refcluster: %w", err)
		}
		left = append(left, found...)
	}
	return left, nil
}

func newNetwork(string) ([]string, error) {
	now, err := network()
	if err := errors.Join(err, errAtStart); err != nil {
		return nil, err
	}
	return slices.DeleteFunc(now, func(n string) bool { return slices.Contains(networkAtStart, n) }), nil
}

func mountsOf(dir string) (left []string, err error) {
	mounts, err := os.ReadFile("/proc/self/mounts")
	for line := range strings.Lines(string(mounts)) {
		if strings.Contains(line, dir) {
			left = append(left, "mount "+strings.TrimSpace(line))
		}
	}
	return left, err
}

// groupsOf finds the control groups of a rig's nodes, whose names begin with that of its folder, in each hierarchy.
func groupsOf(dir string) (left []string, err error) {
	for _, root := range []string{"/sys/fs/cgroup/", "/sys/fs/cgroup/*/"} {
		groups, err := filepath.Glob(root + filepath.Base(dir) + "-*")
		if err != nil {
			return nil, err
		}
		for _, g := range groups {
			left = append(left, "control group "+g)
		}
	}
	return left, nil
}

func processesOf(dir string) (left []string, err error) {
	processes, err := filepath.Glob("/proc/[0-9]*/environ")
	for _, p := range processes {
		pid := filepath.Base(filepath.Dir(p))
		// A process may end while it is looked at.
		env, _ := os.ReadFile(p)
		args, _ := os.ReadFile(filepath.Join("/proc", pid, "cmdline"))
		if strings.Contains(string(env)+string(args), dir) {
			left = append(left, "process "+pid+" "+strings.ReplaceAll(string(args), "\x00", " "))
		}
	}
	return left, err
}
