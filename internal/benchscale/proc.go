// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// clockTick is the unit of processor time in /proc, which is fixed on Linux.
const clockTick = 10 * time.Millisecond

// busy is the processor time that a process has used so far.
func busy(pid int) (time.Duration, error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, fmt.Errorf("processor time of process %d: %w", pid, err)
	}
	return parseStat(string(stat))
}

// parseStat adds up user and system time, fields 14 and 15. The name, in parentheses, may have blanks.
func parseStat(stat string) (time.Duration, error) {
	const user, system = 14 - 3, 15 - 3
	fields := strings.Fields(stat[strings.LastIndexByte(stat, ')')+1:])
	if len(fields) <= system {
		return 0, fmt.Errorf("unexpected content of stat: %q", stat)
	}
	ticks := int64(0)
	for _, f := range []string{fields[user], fields[system]} {
		n, err := strconv.ParseInt(f, 10, 64)
		if err != nil {
			return 0, fmt.Errorf("unexpected content of stat: %w", err)
		}
		ticks += n
	}
	return time.Duration(ticks) * clockTick, nil
}

// memory is what a process has in memory, in MiB: now, and at most since the peak was forgotten.
type memory struct{ resident, peak float64 }

func memoryOf(pid int) (memory, error) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return memory{}, fmt.Errorf("memory of process %d: %w", pid, err)
	}
	return parseStatus(string(status))
}

func parseStatus(status string) (m memory, err error) {
	for _, line := range strings.Split(status, "\n") {
		name, value, _ := strings.Cut(line, ":")
		var to *float64
		switch name {
		case "VmRSS":
			to = &m.resident
		case "VmHWM":
			to = &m.peak
		default:
			continue
		}
		kib, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(value), " kB"), 10, 64)
		if err != nil {
			return memory{}, fmt.Errorf("unexpected content of status: %s: %w", line, err)
		}
		*to = float64(kib) / 1024
	}
	if m.resident == 0 || m.peak == 0 {
		return memory{}, fmt.Errorf("unexpected content of status: no VmRSS or no VmHWM in %d bytes", len(status))
	}
	return m, nil
}
