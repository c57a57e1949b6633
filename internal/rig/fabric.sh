# SPDX-License-Identifier: Apache-2.0
# The holder of a fabric: a network namespace with a bridge to which every node has a cable. It has
# the namespace by being started in it, and holds it open by staying.
#
#   sh fabric.sh ADDRESS/BITS
set -eu
ip -batch - <<X
link set lo up
link add fabric type bridge
addr add $1 dev fabric
link set fabric up
X
echo ready
exec sleep infinity
