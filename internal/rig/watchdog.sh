# SPDX-License-Identifier: Apache-2.0
# The watchdog of a rig. It reads from its input, a line each:
#
#   boot ID            what follows is of this boot of the machine: processes of another one are gone
#   mark NAME=VALUE    a process with this in its environment belongs to the rig
#   pid N START        so does this one, if it was started at START (field 22 of /proc/N/stat)
#   forget N           that process has ended
#   dir PATH           remove this folder in the end
#   run COMMAND        run this in the end, before folders are removed; the last one first
#   cgroup NAME        remove the control groups of this name in the end, as soon as they are empty
#   bye                all is cleaned up: go away
#
# The end of its input without "bye" means that the owner of the rig is gone.
trap '' INT TERM HUP QUIT PIPE
exec >/dev/null 2>&1
nl='
'
mark= pids= dirs= commands= groups= boot=

# started prints when a process was started, and nothing if there is no such process.
started() {
  read -r stat <"/proc/$1/stat" || return 0
  set -- ${stat##*) }
  shift 19
  echo "$1"
}

forget() {
  kept=
  for entry in $pids; do
    [ "${entry%%/*}" = "$1" ] || kept="$kept $entry"
  done
  pids=$kept
}

while IFS= read -r line; do
  argument=${line#* }
  case $line in
  "boot "*) boot=$argument ;;
  "mark "*) mark=$argument ;;
  "pid "*) pids="$pids ${argument% *}/${argument#* }" ;;
  "forget "*) forget "$argument" ;;
  "dir "*) dirs="$dirs$argument$nl" ;;
  "cgroup "*) groups="$groups$argument$nl" ;;
  "run "*) commands="$argument$nl$commands" ;;
  "bye "*) exit 0 ;;
  esac
done

[ "$boot" = "$(cat /proc/sys/kernel/random/boot_id)" ] || pids=
for entry in $pids; do
  pid=${entry%%/*}
  if [ "$(started "$pid")" = "${entry#*/}" ]; then
    kill -9 "-$pid"
    kill -9 "$pid"
  fi
done

# A process that was being started when the owner went may still show up: look until none is left
# twice in a row.
quiet=0 rounds=0
while [ -n "$mark" ] && [ "$quiet" -lt 2 ] && [ "$rounds" -lt 100 ]; do
  found=$(grep -lzsxF -e "$mark" /proc/[0-9]*/environ)
  quiet=$((quiet + 1)) rounds=$((rounds + 1))
  for file in $found; do
    pid=${file#/proc/}
    kill -9 "${pid%/environ}" && quiet=0
  done
  sleep 0.1
done

# removed NAME removes control groups and reports whether none is left.
removed() {
  for path in "/sys/fs/cgroup/$1" /sys/fs/cgroup/*/"$1"; do
    [ -d "$path" ] || continue
    find "$path" -depth -type d -exec rmdir {} \;
    [ ! -d "$path" ] || return 1
  done
}
IFS=$nl
rounds=0
for group in $groups; do
  until removed "$group" || [ "$rounds" -ge 100 ]; do
    rounds=$((rounds + 1))
    sleep 0.1
  done
done

set -f
for command in $commands; do
  eval "$command"
done
for dir in $dirs; do
  rm -rf -- "$dir"
done
