#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Removes all that was made here: what is left of rigs whose processes were killed, their watchdogs included, and the folder bin.
source "$(dirname "$0")/lib.sh"

# The journal of a rig is locked while the rig lives, see internal/rig/reap.go.
for journal in "$bin"/.rigs/*; do
  # A copy of a journal says nothing about the rig.
  grep -qsxF "dir $journal" "$journal" || continue
  flock --nonblock "$journal" sh internal/rig/watchdog.sh <"$journal" || die "a rig of $journal runs still: end its program first"
done
rm -rf "$bin"
