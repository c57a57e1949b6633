# SPDX-License-Identifier: Apache-2.0
# The first process of a hypervisor node, started in network, mount, UTS, IPC and PID namespaces of
# its own. It gives the node its face and then stays: when it is killed, the kernel kills whatever
# runs in the node.
#
#   sh node.sh NAME ADDRESS/BITS GATEWAY MAC DIR STATEDIR [EMULATORS]
#
# DIR is the node's folder on the machine, EMULATORS a folder whose programs the node has in /usr/bin
# too. A line on standard input says that eth0 is there.
set -eu
name=$1 address=$2 gateway=$3 mac=$4 dir=$5 state=$6 emulators=${7:-}

mount --make-rprivate /
mount -t proc proc /proc
# Another sysfs, or /sys/class/net would show the interfaces of the machine.
mount -t sysfs sysfs /sys
hostname "$name"
mount -t tmpfs scratch "$dir/scratch"
cd "$dir/scratch"

# place SOURCE TARGET shows a folder of the node at a path of the machine. If the machine has no
# such path, its parent gets an overlay in this namespace, so that nothing is made on the machine.
place() {
  if [ ! -d "$2" ]; then
    parent=${2%/*}
    case $dir/ in
    "$parent"/*)
      echo "$2 does not exist, and cannot be put over $parent, where the node itself is" >&2
      exit 1
      ;;
    esac
    layer=$(echo "$parent" | tr / -)
    if [ ! -d "./$layer" ]; then
      mkdir -p "./$layer/upper" "./$layer/work"
      mount -t overlay -o "lowerdir=$parent,upperdir=./$layer/upper,workdir=./$layer/work" overlay "$parent"
    fi
    mkdir "$2"
  fi
  mount --bind "$1" "$2"
}
place "$dir/etc" /etc/libvirt
place "$dir/lib" /var/lib/libvirt
place "$dir/cache" /var/cache/libvirt
place "$dir/log" /var/log/libvirt
# First, as an overlay of /run would cover what is mounted below it.
place "$dir/kubevirt" /run/kubevirt
place "$dir/run" /run/libvirt
place "$dir/state" "$state"
[ -z "$emulators" ] || mount -t overlay -o "lowerdir=$emulators:/usr/bin" emulators /usr/bin
# Without an entry for its own name a node waits 10 s for an answer from DNS.
mount --bind "$dir/hosts" /etc/hosts
mount --bind "$dir/passwd" /etc/passwd
mount --bind "$dir/group" /etc/group
cd /

read -r _
ip -batch - <<X
link set lo up
link add br0 address $mac type bridge
link set eth0 master br0 up
addr add $address dev br0
link set br0 up
route add default via $gateway dev br0
X
echo ready
exec </dev/null >/dev/null

# libvirtd detaches each QEMU, so its parent is this process. Waiting is what reaps it: libvirtd asks
# again and again whether a QEMU is gone, and takes one that nobody has reaped for alive.
while :; do
  sleep infinity &
  wait "$!" || :
done
