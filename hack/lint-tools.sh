#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds golangci-lint into bin from the module that tools/lint/go.mod pins, once.
source "$(dirname "$0")/lib.sh"

module=github.com/golangci/golangci-lint/v2
print=$(fingerprint tools/lint/go.mod tools/lint/go.sum hack/lint-tools.sh)
if stamped lint "$print" && [ -x "$bin/golangci-lint" ]; then
  exit 0
fi
parts="$(go -C tools/lint list -deps $module/cmd/golangci-lint | wc -l) packages" \
  with_progress "building golangci-lint (2 minutes the first time on two cores)" "$bin/.log/lint.log" \
  go -C tools/lint build -v -trimpath \
  -ldflags "-s -w -X main.version=$(module_version tools/lint $module)" -o "$bin/golangci-lint" $module/cmd/golangci-lint
stamp lint "$print"
