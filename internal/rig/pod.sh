# SPDX-License-Identifier: Apache-2.0
# The first process of a Pod on a hypervisor node, started in mount and PID namespaces of its own below
# those of the node. Its program finds folders of its own for what a libvirt daemon keeps; everything
# else is the node's. The Pod ends with the program, and whatever runs in it ends with the Pod.
#
#   sh pod.sh DIR SHARED PROGRAM [ARGUMENT...]
#
# SHARED is a folder of the node that the Pod has at /run/kubevirt/sockets.
set -eu
dir=$1 shared=$2
shift 2
mount --make-rprivate /
mount -t proc proc /proc
mount --bind "$dir/etc" /etc/libvirt
mount --bind "$dir/lib" /var/lib/libvirt
mount --bind "$dir/cache" /var/cache/libvirt
mount --bind "$dir/log" /var/log/libvirt
mount --bind "$dir/kubevirt" /run/kubevirt
mount --bind "$shared" /run/kubevirt/sockets
mount --bind "$dir/run" /run/libvirt

# The signal goes to the whole group of processes, and so to the program.
trap : TERM
"$@" &
program=$!
code=0
# Waiting is also what reaps the processes whose parents have ended.
while :; do
  wait "$program" && code=0 || code=$?
  kill -0 "$program" 2>/dev/null || break
done
exit "$code"
