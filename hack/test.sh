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
# But for "unit", the programs of the tests must exist, and skipped tests must be listed in hack/skips.txt.
source "$(dirname "$0")/lib.sh"

# paths prints the folders of files as "go test" takes them.
paths() { xargs -n 1 dirname | sort -u | sed 's|^|./|'; }

# rigged are the packages with tests that are more than unit tests: they ask for the programs of the rig, or whether they
# are run in short mode.
rigged() { git grep -lE --untracked 'rigtest\.|testing\.Short\(\)' -- '*_test.go' | paths | unemulated; }

# unemulated leaves the packages out that emulate guests.
unemulated() { grep -vxF -f <(printf '%s\n' "${emulated[@]}"); }

# emulated are the packages whose tests run guests for minutes. Everything else is tested beside them with what they leave of the
# machine: a guest is ahead of all, and its test ahead of the other tests, as one that has to wait may not boot within the time that
# its test has, and see rig.Undisturbed.
emulated=(./domain/libvirt ./refdaemon/e2e ./refdaemon/e2e/pods)

# longest are the other packages that take minutes, most of them waiting for processes that are started again. They begin first.
longest=(./refdaemon ./domain/domainctrl ./vmi/vmictrl ./migration/migrationctrl ./refdaemon/config ./refdaemon/config/webhook
  ./internal/rig ./internal/doctest)

# goroutine is how one starts.
goroutine='^\s*go (func\(|[a-zA-Z_.]+\()|errgroup\.'

# concurrent are the packages that start goroutines, themselves or in their tests. The race detector has nothing to find in the
# others, and little in programs that only measure, show or search, or that are tested as processes of their own: "make nightly" runs
# it over all.
concurrent() {
  git grep -lE --untracked "$goroutine" -- '*.go' | paths |
    grep -vE "^\./(refdaemon|tools/.*|examples/.*|internal/(benchscale|demo|explore|mutation|realcluster|refcluster|rig|soak))$" | unemulated
}

# controlled are the packages whose tests start a control plane. The race detector doubles what they cost: "make test" runs it over
# their short tests, "make integration" and "make nightly" over all.
controlled() { git grep -lE --untracked 'rigtest\.' -- '*_test.go' | paths; }
uncontrolled() { concurrent | grep -vxF -f <(controlled); }

# others are all packages but those that emulate guests, the longest first.
others() {
  printf '%s\n' "${longest[@]}"
  go list -tags libvirt_dlopen ./... | sed "s|^$(go list -m)|.|" | unemulated | grep -vxF -f <(printf '%s\n' "${longest[@]}")
}

# tests WORD... runs "go test" with these arguments. Much of it waits, so there are more packages and tests at a time than
# processors. hack/checks.sh runs vet, and these programs are not debugged, so they are linked without symbols. A fifth of what an
# API server costs that runs for a minute would be the collection of garbage, for which there is no need here.
tests() {
  # shellcheck disable=SC2086 # arguments are words
  GOGC=${GOGC:-400} go test -json -shuffle on -vet off -ldflags='-s -w' -p 3 -parallel 4 -tags libvirt_dlopen -timeout 60m ${ARGS:-} "$@"
}

# guests PACKAGE... runs the tests of emulated guests, one package after the other.
guests() { tests -p 1 "$@"; }

# summed COMMAND... prints a summary of the output of "go test -json".
summed() {
  local awk=(awk)
  # mawk waits for whole blocks otherwise.
  [[ $(awk -W version 2>/dev/null </dev/null) != mawk* ]] || awk+=(-W interactive)
  mkdir -p "$bin/.log"
  go -C tools/testsum build -o "$bin/gotestsum" gotest.tools/gotestsum
  "$@" | "$bin/gotestsum" --format pkgname --format-icons text --no-color --ignore-non-json-output-lines --raw-command -- cat |
    "${awk[@]}" -f hack/skips.awk hack/skips.txt -
}

unit() {
  # shellcheck disable=SC2086 # arguments are words
  go test -short -tags libvirt_dlopen ${ARGS:-} ./... | grep -v 'no test files'
}

# beside FUNCTION FUNCTION... runs functions beside each other, and shows the tests of the first as they end, of the others after that.
beside() {
  local status=0 name pid pids=()
  for name in "${@:2}"; do
    "$name" >"$bin/.log/$name.json" &
    pids+=($!)
  done
  # shellcheck disable=SC2064 # the processes of now are meant
  trap "kill ${pids[*]} 2>/dev/null; exit 130" INT TERM
  "$1" || status=$?
  for pid in "${pids[@]}"; do wait "$pid" || status=$?; done
  for name in "${@:2}"; do cat "$bin/.log/$name.json"; done
  return $status
}

# yielding makes guests and their tests go ahead of what this shell runs from now on.
yielding() { renice -n 15 $BASHPID >/dev/null; }

# kubelets runs the tests on nodes with a kubelet, hypervisors those on nodes without. The daemons are programs of their own, built
# without the race detector.
kubelets() { guests ./refdaemon/e2e/pods; }
hypervisors() { guests ./domain/libvirt ./refdaemon/e2e; }
agents() { guests ./refdaemon/e2e; }
drivers() { guests -race ./domain/libvirt; }

# rigs runs the tests of a control plane or the kernel without guests, with the race detector.
rigs() {
  local packages concurrent plain status=0
  yielding
  mapfile -t packages < <(rigged)
  mapfile -t concurrent < <(concurrent | grep -xF -f <(printf '%s\n' "${packages[@]}"))
  mapfile -t plain < <(printf '%s\n' "${packages[@]}" | grep -vxF -f <(concurrent))
  tests -race "${concurrent[@]}" || status=$?
  tests "${plain[@]}" || status=$?
  return $status
}

# raced runs the tests without guests and control plane that the race detector is for.
raced() {
  local packages
  yielding
  mapfile -t packages < <(uncontrolled)
  tests -race -p 1 "${packages[@]}"
}

# plain runs the checks, and all other tests without guests.
plain() {
  local short packages status=0
  yielding
  mapfile -t short < <(concurrent | grep -xF -f <(controlled))
  mapfile -t packages < <(others | grep -vxF -f <(uncontrolled))
  if [ -z "${ARGS:-}" ]; then
    hack/checks.sh >&2 || { say "the checks failed: run hack/checks.sh" >&2; status=1; }
    say "== race detector, short tests of controllers" >&2
    go test -race -short -vet off -ldflags='-s -w' -p 3 -tags libvirt_dlopen "${short[@]}" >&2 || status=$?
  fi
  tests "${packages[@]}" || status=$?
  return $status
}

integration() { beside rigs drivers; }
e2e() { beside kubelets agents; }
everything() { beside plain raced kubelets hypervisors; }

demo() {
  say "== demo"
  go build -tags libvirt_dlopen -o "$bin/" ./internal/demo
  mkdir -p "$bin/.log"
  "$bin/demo" >"$bin/.log/demo.log" 2>&1 || { cat "$bin/.log/demo.log"; die "the demo failed"; }
  sed -n '/^== Summary/,$p' "$bin/.log/demo.log"
  go run ./internal/screenshots -check
}

main() {
  case ${1:-} in
    unit) unit ;;
    integration | e2e)
      hack/image.sh
      CI=true summed "$1"
      ;;
    "")
      export CI=true
      hack/image.sh
      # The demo is alone on the machine, as people see it; it fails unless the guest was there all the time, once.
      [ -n "${ARGS:-}" ] || demo
      say "== test"
      summed everything
      ;;
    *) die "no such tests: $1" ;;
  esac
}

main "$@"
