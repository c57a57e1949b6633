# SPDX-License-Identifier: Apache-2.0
# Detaches the loop devices that a node has left attached, if they are still what they were.
#
#   sh kubelet_loops.sh FILE
#
# FILE has a line for each: its name, and the inode and the device of what is behind it. It need not exist.
[ -e "$1" ] || exit 0
attached() { [ "$(losetup --noheadings --raw --output NAME,BACK-INO,BACK-MAJ:MIN "$1" 2>/dev/null)" = "$1 $2 $3" ]; }
while read -r name inode device; do
  attached "$name" "$inode" "$device" || continue
  if ! why=$(LC_ALL=C losetup --detach "$name" 2>&1); then
    case $why in
    # ENXIO: it was detached before, by the kubelet, and the kernel waits for whoever has it open still.
    *"No such device or address"*) ;;
    *)
      echo "$why" >&2
      exit 1
      ;;
    esac
  fi
done <"$1"
