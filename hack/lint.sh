#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs golangci-lint over both variants of the module: with libvirt, and without a C compiler.
source "$(dirname "$0")/lib.sh"

hack/lint-tools.sh
"$bin/golangci-lint" run --build-tags libvirt_dlopen ./...
CGO_ENABLED=0 "$bin/golangci-lint" run ./...
