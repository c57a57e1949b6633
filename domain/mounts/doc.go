// SPDX-License-Identifier: Apache-2.0

// Package mounts brings disks that other containers hold to a guest: the image of a
// containerDisk, which a container of the guest's own Pod offers, and volumes that
// are plugged in while the guest runs, which another Pod carries.
//
// What is in the folders of a Pod is under the control of who runs in it. So no path
// is used twice: each is walked once, from a folder that is known to be the kubelet's
// and without following links, and what was found there is held open, looked at and
// mounted as such, whatever is put in its place meanwhile (openat2, open_tree,
// move_mount). Only regular files and block devices are mounted; the rest is an error
// that wraps [domain.ErrInvalid]. What is not there yet is one that wraps
// [domain.ErrNotReady]: try again.
//
// Each mount is written down before it is made, in a file per guest, so that
// [Mounter.Release] finds all of them after any crash.
//
// Linux 5.8 is needed. To work in another mount namespace a thread enters it and ends
// afterwards; a process that starts others with a parent-death signal should start
// them from a thread of their own.
package mounts
