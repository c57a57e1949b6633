// SPDX-License-Identifier: Apache-2.0

package template

func backendStorage(*Draft) error { return nil }
