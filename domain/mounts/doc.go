// SPDX-License-Identifier: Apache-2.0

// Package mounts makes disks in other containers available to a guest: images of containerDisks,
// which containers of the launcher Pod provide, and hotplugged volumes, which an attachment Pod
// carries, or that only the node has. [Pods] opens what the launcher Pod itself has: claims, devices, folders for files of the
// node, and the image of the guest's kernel.
//
// The directories of a Pod are under the control of its processes. Therefore no path is resolved
// twice: each is walked once, from a directory that is known to be the kubelet's and without
// following symbolic links, and the result is held open, inspected and mounted as such, whatever
// replaces it meanwhile (openat2, open_tree, move_mount). Only regular files and block devices are
// mounted; anything else is an error that wraps [domain.ErrInvalid]. If something does not exist
// yet, the error wraps [domain.ErrNotReady] and the caller should retry.
//
// Each mount is recorded before it is made, in a file per VMI, so that [Mounter.Release] finds all
// of them after a crash at any point.
//
// Linux 5.8 is required. To work in another mount namespace, a thread enters it and ends
// afterwards; a process that starts children with a parent-death signal should start them from a
// dedicated thread.
package mounts
