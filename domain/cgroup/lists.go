// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/virtloom/virtloom/domain"
)

// Files of the devices controller of cgroup v1 (Linux: Documentation/admin-guide/cgroup-v1/devices.rst).
const (
	listFile  = "devices.list"
	allowFile = "devices.allow"
	denyFile  = "devices.deny"

	// everything is the list of a cgroup without a filter, and the rule that ends it.
	everything, everyDevice = "a *:* rwm", "a"
)

// device is what a rule is about.
type device struct {
	kind         Kind
	major, minor int64
}

// setLists sets the filter of a cgroup of version 1. What is missing is allowed before what is too
// much is denied, so that at no time a device is denied that both the old and the new list allow;
// but a cgroup without a filter, as that of a privileged container, allows nothing for a moment.
func setLists(dir *os.File, rules []Rule) (changed bool, err error) {
	have, err := listed(dir)
	if err != nil {
		return false, err
	}
	if have == nil {
		if err := writeRule(dir, denyFile, everyDevice); err != nil {
			return false, err
		}
		changed = true
	}
	want := map[device]Access{}
	for _, r := range normal(rules) {
		want[device{r.Kind, r.Major, r.Minor}] = r.Access
	}
	for _, step := range []struct {
		file     string
		of, less map[device]Access
	}{{allowFile, want, have}, {denyFile, have, want}} {
		for d, access := range step.of {
			access &^= step.less[d]
			if access == 0 {
				continue
			}
			r := Rule{Kind: d.kind, Major: d.major, Minor: d.minor, Access: access}
			if err := writeRule(dir, step.file, r.String()); err != nil {
				return changed, err
			}
			changed = true
		}
	}
	return changed, nil
}

// listed returns what a cgroup allows; nil if that is everything.
func listed(dir *os.File) (map[device]Access, error) {
	f, err := openCgroupFile(dir, listFile, unix.O_RDONLY)
	if errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("its hierarchy is not that of the devices controller: %w", domain.ErrUnsupported)
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := io.ReadAll(f)
	if err != nil {
		return nil, err
	}
	out := map[device]Access{}
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSuffix(line, "\n")
		if line == everything {
			return nil, nil //nolint:nilnil // documented
		}
		r, err := parseRule(line)
		if err != nil {
			return nil, err
		}
		out[device{r.Kind, r.Major, r.Minor}] |= r.Access
	}
	return out, nil
}

// parseRule is the reverse of [Rule.String].
func parseRule(line string) (Rule, error) {
	r := Rule{}
	var kind rune
	var major, minor, access string
	numbers := strings.Replace(line, ":", " ", 1)
	_, err := fmt.Sscanf(numbers, "%c %s %s %s", &kind, &major, &minor, &access)
	for _, n := range []struct {
		text string
		to   *int64
	}{{major, &r.Major}, {minor, &r.Minor}} {
		if *n.to = Any; err == nil && n.text != "*" {
			_, err = fmt.Sscan(n.text, n.to)
		}
	}
	r.Kind = Kind(kind) //nolint:gosec // checked below
	for _, letter := range access {
		i := strings.IndexRune("mrw", letter)
		if i < 0 {
			err = errors.Join(err, fmt.Errorf("unknown access %q", letter))
			break
		}
		r.Access |= Mknod << i
	}
	if err == nil {
		err = r.check()
	}
	if err != nil {
		return r, fmt.Errorf("%s has line %q: %w", listFile, line, err)
	}
	return r, nil
}

// writeRule writes one rule to a file of the cgroup: the kernel takes one at a time.
func writeRule(dir *os.File, name, rule string) error {
	f, err := openCgroupFile(dir, name, unix.O_WRONLY)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = f.WriteString(rule)
	switch {
	case errors.Is(err, unix.EPERM):
		err = fmt.Errorf("the cgroup above does not allow it: %w", err)
	case errors.Is(err, unix.ENODEV):
		err = errors.Join(domain.ErrNotFound, err) // removed meanwhile
	}
	if err != nil {
		return fmt.Errorf("writing %q to %s: %w", rule, name, err)
	}
	return nil
}

// openCgroupFile opens a file of the cgroup.
func openCgroupFile(dir *os.File, name string, flags int) (*os.File, error) {
	fd, err := unix.Openat(int(dir.Fd()), name, flags|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: name, Err: err}
	}
	return os.NewFile(uintptr(fd), name), nil
}
