# SPDX-License-Identifier: Apache-2.0
# Starts a program of a node with a kubelet, in the node's namespaces, in the node's control group.
#
#   sh kubelet_program.sh PROGRAM [ARGUMENT...]
set -eu
if [ -e /sys/fs/cgroup/init/cgroup.procs ]; then
  echo 0 >/sys/fs/cgroup/init/cgroup.procs
else
  for procs in /sys/fs/cgroup/*/cgroup.procs; do
    echo 0 >"$procs"
  done
fi
exec "$@"
