#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs golangci-lint over the module with libvirt; go vet covers the variant without a C compiler.
source "$(dirname "$0")/lib.sh"

hack/lint-tools.sh
"$bin/golangci-lint" run --build-tags libvirt_dlopen ./...
