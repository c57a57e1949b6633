// SPDX-License-Identifier: Apache-2.0

// Package network sets up the networks of VMIs on a node: it checks that the bridges exist, and
// creates tap devices on them where the hypervisor cannot do so itself.
//
// While a bridge is missing, the error wraps [domain.ErrNotReady] and begins with "waiting for
// network": the target of a live migration then does not become ready, and the guest stays on the
// source. Each setup is recorded when it begins and when it is done. A setup that was begun and not
// completed, because the agent ended in between, is in an unknown state: that is an error that
// wraps [domain.ErrBroken], and fails a VMI that was about to start.
package network
