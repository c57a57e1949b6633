#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# What the guest answers to HTTP: who it is, for how long it has been up, and what it has. Asked for "/?poweroff", it shuts down.
read -r uptime _ </proc/uptime
memory=$(sed -n 's/^MemTotal: *\([0-9]*\) kB/\1/p' /proc/meminfo)
printf 'Content-Type: text/plain\r\n\r\nhost=%s uptime=%s cpus=%s mem=%skB\n' "$(hostname)" "$uptime" "$(nproc)" "$memory"
[ "$QUERY_STRING" != poweroff ] || { sync; poweroff -f; }
