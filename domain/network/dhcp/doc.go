// SPDX-License-Identifier: Apache-2.0

// Package dhcp gives the guest of a launcher Pod its address. [Serve] runs in the launcher, without
// privileges: it finds the bridges that package network has made in its network namespace, and
// answers DHCPv4 and DHCPv6 on each of them.
//
// There is one guest on a bridge, and one address for it: the one after the bridge's own, or, where
// another link holds it ([Holder]), that of the Pod with its routes ([Routes]). Only the
// guest's hardware address is answered over IPv4, which is the alias of the tap device ([Alias]): what the
// guest runs behind a bridge of its own must not get the address a second time. The server keeps no
// state, so a guest that migrates renews its lease with the server of the other Pod. What a guest
// sends is bounded: replies are limited in number, and nothing that a guest sends is stored or
// logged.
package dhcp
