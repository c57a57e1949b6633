# SPDX-License-Identifier: Apache-2.0
# The first process of a node with a kubelet, started in network, mount, UTS, IPC and PID namespaces of its own. It gives the
# node its face and then stays: when it is killed, the kernel kills whatever runs in the node, and nothing of it is left.
#
#   sh kubelet.sh NAME ADDRESS/BITS GATEWAY MAC DIR RIG BIN CGROUP
#
# DIR is the node's folder on the machine, within the folder RIG, which has the same path on the node, as has BIN with its
# programs. CGROUP is the name of the node's control group in each hierarchy. A line on standard input says that eth0 is there.
set -eu
name=$1 address=$2 gateway=$3 mac=$4 dir=$5 rig=$6 bin=$7 cgroup=$8

if [ -z "${VIRTLOOM_NODE_CGROUPS:-}" ]; then
  for procs in "/sys/fs/cgroup/$cgroup/cgroup.procs" /sys/fs/cgroup/*/"$cgroup/cgroup.procs"; do
    [ ! -e "$procs" ] || echo 0 >"$procs"
  done
  # The group that a process is in is the root of what it sees of the hierarchy from here on.
  VIRTLOOM_NODE_CGROUPS=$cgroup exec unshare --cgroup -- /bin/sh "$0" "$@"
fi
unset VIRTLOOM_NODE_CGROUPS

mount --make-rprivate /
hostname "$name"

# The root of the node shows the files of the machine; what is written goes to memory. What grows large is elsewhere.
mount -t tmpfs scratch "$dir/scratch"
cd "$dir/scratch"
mkdir root

# show NAME PATH shows a folder of the machine on the node at the same path.
show() {
  mkdir "upper-$1" "work-$1"
  mkdir -p "root$2"
  mount -t overlay -o "lowerdir=$2,upperdir=upper-$1,workdir=work-$1" overlay "root$2"
}
show root /
# What is mounted there is not part of it. Not every file system can be written over; none of those has what a node needs to.
for path in /*; do
  case $path in
  /dev | /proc | /run | /sys) continue ;;
  esac
  mountpoint -q "$path" || continue
  show "${path#/}" "$path" || mount -o bind,ro "$path" "root$path"
done

# place SOURCE TARGET shows a folder of the machine at a path of the node.
place() {
  mkdir -p "root$2"
  mount --bind "$1" "root$2"
}
mount -t tmpfs run root/run
mkdir -p root/run/lock root/run/containerd
mkdir -p "root$rig" "root$bin"
place "$rig" "$rig"
place "$bin" "$bin"
for folder in kubelet containerd cni virtloom; do
  place "$dir/$folder" "/var/lib/$folder"
done
place "$dir/net.d" /etc/cni/net.d
place "$dir/pods" /var/log/pods
place "$dir/containers" /var/log/containers
printf '127.0.0.1 localhost\n%s %s\n' "${address%/*}" "$name" >hosts
printf '%s\n' "$name" >hostname
printf '%s' "$cgroup" | md5sum | cut -c 1-32 >machine-id
: >resolv.conf
for file in hosts hostname machine-id resolv.conf; do
  rm -f "root/etc/$file"
  mv "$file" "root/etc/$file"
done

# A loop device is the machine's, whoever attaches it. What is attached on the node is noted, to be detached in the end.
losetup=$(command -v losetup)
mv "root$losetup" "root$losetup.machine"
cat >"root$losetup" <<X
#!/bin/sh
out=\$(losetup.machine "\$@") || exit
[ -z "\$out" ] || printf '%s\\n' "\$out"
for loop in "\$@" \$out; do
  case \$loop in
  /dev/loop[0-9]*) losetup.machine --noheadings --raw --output NAME,BACK-INO,BACK-MAJ:MIN "\$loop" >>"$dir/loops" 2>/dev/null ;;
  esac
done
:
X
chmod 755 "root$losetup"

mount -t proc proc root/proc
# A kubelet sets these, but they are the machine's: it finds them set.
settings() {
  while read -r file value; do
    [ -e "root/proc/sys/$file" ] || continue
    echo "$value" >"setting-${file##*/}"
    mount --bind "setting-${file##*/}" "root/proc/sys/$file"
  done <<X
vm/overcommit_memory 1
vm/panic_on_oom 0
kernel/panic 10
kernel/panic_on_oops 1
kernel/keys/root_maxkeys 1000000
kernel/keys/root_maxbytes 25000000
X
}
settings

mount --rbind /dev root/dev
mount -t tmpfs -o nosuid,nodev,mode=1777 shm root/dev/shm
[ ! -d root/dev/mqueue ] || mount -t mqueue mqueue root/dev/mqueue

# Another sysfs, or /sys/class/net would show the interfaces of the machine.
mount -t sysfs sysfs root/sys
if [ -d "/sys/fs/cgroup/$cgroup" ]; then
  mount --bind "/sys/fs/cgroup/$cgroup" root/sys/fs/cgroup
  # A group has processes or passes on controllers.
  mkdir root/sys/fs/cgroup/init
  echo 0 >root/sys/fs/cgroup/init/cgroup.procs
  for controller in $(cat root/sys/fs/cgroup/cgroup.controllers); do
    echo "+$controller" >root/sys/fs/cgroup/cgroup.subtree_control || :
  done
else
  mount -t tmpfs -o mode=755 cgroup root/sys/fs/cgroup
  for path in /sys/fs/cgroup/*; do
    target=root$path
    if [ -L "$path" ]; then
      cp -P "$path" "$target"
    elif [ -d "$path/$cgroup" ]; then
      mkdir "$target"
      mount --bind "$path/$cgroup" "$target"
    fi
  done
fi

cd root
mkdir .machine
pivot_root . .machine
cd /
umount -l /.machine
rmdir /.machine
# As on a machine: what is mounted in a folder that a Pod got from the node is seen on the node.
mount --make-rshared /

# Where layers of images cannot be laid over each other they are copied, which takes longer.
mkdir /run/probe /var/lib/containerd/probe /var/lib/containerd/probe/upper /var/lib/containerd/probe/work
echo overlayfs >"$dir/etc/snapshotter"
if mount -t overlay -o lowerdir=/etc,upperdir=/var/lib/containerd/probe/upper,workdir=/var/lib/containerd/probe/work probe /run/probe; then
  umount /run/probe
else
  echo native >"$dir/etc/snapshotter"
  sed -i 's/"overlayfs"/"native"/' "$dir/etc/containerd.toml"
fi
rm -r /run/probe /var/lib/containerd/probe

read -r _
ip -batch - <<X
link set lo up
link set eth0 address $mac up
addr add $address dev eth0
route add default via $gateway dev eth0
X
echo 1 >/proc/sys/net/ipv4/ip_forward
echo ready
exec </dev/null >/dev/null

# Shims and what is left of containers have this process for a parent. Waiting is what reaps them.
while :; do
  sleep infinity &
  wait "$!" || :
done
