#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# What the guest answers to HTTP: who it is, and for how long it has been up.
read -r uptime _ </proc/uptime
printf 'Content-Type: text/plain\r\n\r\nhost=%s uptime=%s\n' "$(hostname)" "$uptime"
