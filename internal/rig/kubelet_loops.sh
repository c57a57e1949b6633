# SPDX-License-Identifier: Apache-2.0
# Detaches the loop devices that a node has left attached, if they are still what they were.
#
#   sh kubelet_loops.sh FILE
#
# FILE has a line for each: its name, and the inode and the device of what is behind it. It need not exist.
[ -e "$1" ] || exit 0
while read -r name inode device; do
  if [ "$(losetup --noheadings --raw --output NAME,BACK-INO,BACK-MAJ:MIN "$name" 2>/dev/null)" = "$name $inode $device" ]; then
    losetup --detach "$name"
  fi
done <"$1"
