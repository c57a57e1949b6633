#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Prints the changes of the exported API since the last release, or since the given commit: breaking changes, which determine the
# next version by docs/versioning.md, and additions. Prints nothing before the first release. It compares commits: uncommitted
# changes are ignored.
source "$(dirname "$0")/lib.sh"

since=${1:-$(git describe --tags --abbrev=0 HEAD^ 2>/dev/null || true)}
[ -n "$since" ] || exit 0
go -C tools/lint build -o "$bin/go-apidiff" github.com/joelanford/go-apidiff
CGO_ENABLED=0 "$bin/go-apidiff" --print-compatible "$since" HEAD
