// SPDX-License-Identifier: Apache-2.0

// Package network gets a node ready to plug a guest's networks: it tells whether the
// bridges are there, and makes tap devices on them where the hypervisor cannot do so
// itself.
//
// While a network is missing, the error wraps [domain.ErrNotReady] and says "waiting
// for network": the target of a live migration does not say that it is ready, and the
// guest stays where it is. What is made for a guest is written down when it is begun
// and when it is done. A network that was begun and not done, because the agent ended
// in between, is in a state nobody knows: that is an error that wraps
// [domain.ErrBroken], and fails a guest that was to be started.
package network
