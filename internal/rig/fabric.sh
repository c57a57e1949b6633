# SPDX-License-Identifier: Apache-2.0
# The holder of a fabric: a network namespace with a bridge to which every node has a cable. It has
# the namespace by being started in it, and holds it open by staying.
#
#   sh fabric.sh ADDRESS/BITS [route]
#
# With "route", packets of Pods go from node to node through it.
set -eu
ip -batch - <<X
link set lo up
link add fabric type bridge
addr add $1 dev fabric
link set fabric up
X
if [ "${2:-}" = route ]; then
  echo 1 >/proc/sys/net/ipv4/ip_forward
  # Nodes would learn a shorter way, which a node that is stopped leaves behind.
  echo 0 >/proc/sys/net/ipv4/conf/all/send_redirects
  echo 0 >/proc/sys/net/ipv4/conf/fabric/send_redirects
fi
echo ready
exec sleep infinity
