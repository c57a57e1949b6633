#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs tests. The last line counts them.
#
#	test.sh unit         those that need Go and nothing else (go test -short)
#	test.sh integration  those of packages that use a control plane, libvirt or the kernel, short of e2e
#	test.sh e2e          those of the daemons with real guests
#	test.sh              the checks, the demo, and all of these
#
# ARGS are further arguments for "go test", for example ARGS="-run TestRig -count 1"; with ARGS, checks and demo are left out.
# But for "unit", what the tests need has to be there, and what they skip has to be in hack/skips.txt.
source "$(dirname "$0")/lib.sh"

# rigged are the packages with tests that are more than unit tests: they ask for the programs of the rig, or whether they
# are run in short mode.
rigged() {
  git grep -lE --untracked 'rigtest\.|testing\.Short\(\)' -- '*_test.go' | xargs -n 1 dirname | sort -u | grep -v '^refdaemon/e2e$' | sed 's|^|./|'
}

# concurrent are the packages that start goroutines, themselves or in their tests. The race detector has nothing to find in the others.
concurrent() {
  git grep -lE --untracked '^\s*go (func\(|[a-zA-Z_.]+\()|errgroup\.|\bt\.Parallel\(\)' -- '*.go' | xargs -n 1 dirname | sort -u |
    grep -vE '^(refdaemon/e2e|tools/.*)$' | sed 's|^|./|'
}

# others PACKAGE... are all packages but these and refdaemon/e2e.
others() {
  go list -tags libvirt_dlopen ./... | sed "s|^$(go list -m)|.|" | grep -vxF -e ./refdaemon/e2e -f <(printf '%s\n' "$@")
}

# tests TIMEOUT WORD... runs "go test" with these arguments.
tests() {
  local within=$1
  shift
  # shellcheck disable=SC2086 # arguments are words
  go test -json -shuffle on -tags libvirt_dlopen -timeout "$within" ${ARGS:-} "$@"
}

# summed COMMAND... shows the essence of what "go test -json" writes.
summed() {
  mkdir -p "$bin/.log"
  go build -o "$bin/testsummary" ./internal/testsummary
  "$@" | "$bin/testsummary" -skips hack/skips.txt
}

unit() {
  # shellcheck disable=SC2086 # arguments are words
  go test -short -tags libvirt_dlopen ${ARGS:-} ./... | grep -v 'no test files'
}

integration() {
  local packages raced plain status=0
  mapfile -t packages < <(rigged)
  mapfile -t raced < <(printf '%s\n' "${packages[@]}" | grep -xF -f <(concurrent))
  mapfile -t plain < <(printf '%s\n' "${packages[@]}" | grep -vxF -f <(concurrent))
  tests 30m -race "${raced[@]}" || status=$?
  tests 30m "${plain[@]}" || status=$?
  return $status
}

e2e() {
  local status=0
  tests 60m ./refdaemon/e2e || status=$?
  # Once more what differs when each guest has a libvirt of its own.
  [ -n "${ARGS:-}" ] || tests 30m ./refdaemon/e2e -run '^TestAGuestMovesThereAndBackManyTimes$' -launchers || status=$?
  return $status
}

everything() {
  local raced plain status=0
  mapfile -t raced < <(concurrent)
  mapfile -t plain < <(others "${raced[@]}")
  tests 30m "${plain[@]}" || status=$?
  tests 30m -race "${raced[@]}" || status=$?
  # Emulated guests get the machine for themselves.
  e2e || status=$?
  return $status
}

demo() {
  say "== demo"
  go build -tags libvirt_dlopen -o "$bin/" ./refdaemon ./internal/demo
  mkdir -p "$bin/.log"
  "$bin/demo" >"$bin/.log/demo.log" 2>&1 || { cat "$bin/.log/demo.log"; die "the demo failed"; }
  sed -n '/^== Summary/,$p' "$bin/.log/demo.log"
  go run ./internal/screenshots -check
}

main() {
  case ${1:-} in
    unit) unit ;;
    integration | e2e) CI=true summed "$1" ;;
    "")
      export CI=true
      # The demo is alone on the machine, as people see it; it fails unless the guest was there all the time, once.
      [ -n "${ARGS:-}" ] || { hack/checks.sh && demo; }
      say "== test"
      summed everything
      ;;
    *) die "no such tests: $1" ;;
  esac
}

main "$@"
