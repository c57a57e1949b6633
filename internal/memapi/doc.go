// SPDX-License-Identifier: Apache-2.0

// Package memapi is an API server in memory, for tests that need a control plane for days of simulated time. It is no
// part of the SDK.
//
// It is reached through an [http.RoundTripper], so that real clients, informers and managers use it unchanged, and it
// opens no socket and starts no process: all of it blocks on channels and conditions of its own, so that it runs in a
// bubble of testing/synctest, where time passes as soon as everybody waits.
//
// It serves the kinds it is told of: get, list, watch, create, update, patch (JSON, merge and strategic merge) and
// delete, the status as a part of its own where the kind says so, resource versions as preconditions, finalizers,
// graceful deletion of Pods, selectors by label and by name, metadata only, and discovery. Of what a real server does
// it leaves out validation, defaulting, admission, quotas, rights and managed fields.
//
// Each client has an [Access] of its own, through which it can be cut off, and through which what it asks can be made
// to fail, before or after it was carried out, and what it is told can be made late or be lost.
package memapi
