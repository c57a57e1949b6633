#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# All checks and tests of the repository, cheapest first. The last line counts the tests.
# ARGS are further arguments for "go test", for example ARGS="-run TestRig -count 1".
source "$(dirname "$0")/lib.sh"

main() {
  say "== format"
  local unformatted
  unformatted=$(git ls-files -z --cached --others --exclude-standard '*.go' | xargs -0 gofmt -l)
  [ -z "$unformatted" ] || die "not formatted (run: make fmt): $unformatted"

  say "== build without a C compiler"
  CGO_ENABLED=0 go build ./...

  say "== vet"
  go vet -tags libvirt_dlopen ./...
  CGO_ENABLED=0 go vet ./...

  say "== generated files"
  hack/verify-generate.sh

  say "== expressions of dashboard and alerts"
  go -C tools/promql test ./...

  say "== lint"
  hack/lint.sh

  say "== test"
  go build -o "$bin/testsummary" ./internal/testsummary
  {
    local status=0 packages
    packages=$(go list -tags libvirt_dlopen ./... | grep -v '/refdaemon/e2e$')
    # shellcheck disable=SC2086 # packages and arguments are words
    tests 30m -race $packages || status=$?
    # Emulated guests get the machine for themselves.
    tests 60m -race ./refdaemon/e2e || status=$?
    # Once more what differs when each guest has a libvirt of its own.
    [ -n "${ARGS:-}" ] || tests 30m ./refdaemon/e2e -run '^TestAGuestMovesThereAndBackManyTimes$' -launchers || status=$?
    exit $status
  } | "$bin/testsummary"
}

# tests TIMEOUT WORD... runs "go test" with these arguments.
tests() {
  local within=$1
  shift
  # shellcheck disable=SC2086 # arguments are words
  go test -json -shuffle on -tags libvirt_dlopen -timeout "$within" ${ARGS:-} "$@"
}

main
