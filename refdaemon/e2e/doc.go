// SPDX-License-Identifier: Apache-2.0

// Package e2e holds the end-to-end tests of refdaemon: real processes on a real
// control plane, real guests in real libvirt and QEMU. It exports nothing.
package e2e
