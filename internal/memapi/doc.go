// SPDX-License-Identifier: Apache-2.0

// Package memapi is an API server in memory, for tests that need a control plane for days of simulated time. It is not
// part of the SDK.
//
// Clients use it through an [http.RoundTripper], so that real clients, informers and managers work unchanged. It opens no
// socket and starts no process: it blocks only on its own channels and conditions, so that it runs in a bubble of
// testing/synctest, where time advances when all goroutines are blocked.
//
// It serves the registered kinds: get, list, watch, create, update, patch (JSON, merge and strategic merge) and
// delete, the status as a part of its own where the kind says so, resource versions as preconditions, finalizers,
// graceful deletion of Pods, selectors by label and by name, metadata only, and discovery. It has no
// validation, defaulting, admission, quotas, authorization and managed fields.
//
// Each client has its own [Access], which can disconnect it, fail its requests before or after they were carried out, and
// delay or lose its answers and events.
package memapi
