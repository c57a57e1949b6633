// SPDX-License-Identifier: Apache-2.0

// Package e2e holds the tests of refdaemon as a whole: real processes on a real
// control plane, real guests in real libvirt and QEMU. There is nothing to
// import here.
package e2e
