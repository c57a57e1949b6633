#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# All checks and tests of the repository, cheapest first. The last line counts the tests.
# ARGS are further arguments for "go test", for example ARGS="-run TestRig -count 1".
source "$(dirname "$0")/lib.sh"

main() {
  hack/checks.sh

  # Alone on the machine, as people see it; it fails unless the guest was there all the time, once.
  [ -n "${ARGS:-}" ] || demo

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

demo() {
  say "== demo"
  go build -tags libvirt_dlopen -o "$bin/refdaemon" ./refdaemon
  go build -tags libvirt_dlopen -o "$bin/demo" ./internal/demo
  mkdir -p "$bin/.log"
  "$bin/demo" >"$bin/.log/demo.log" 2>&1 || { cat "$bin/.log/demo.log"; die "the demo failed"; }
  sed -n '/^== Summary/,$p' "$bin/.log/demo.log"
  go run ./internal/screenshots -check
}

# tests TIMEOUT WORD... runs "go test" with these arguments.
tests() {
  local within=$1
  shift
  # shellcheck disable=SC2086 # arguments are words
  go test -json -shuffle on -tags libvirt_dlopen -timeout "$within" ${ARGS:-} "$@"
}

main
