// SPDX-License-Identifier: Apache-2.0

package template

func hotplugPod(*Draft) error { return nil }

func attachment(*Draft) error { return nil }

func trigger(*Draft) error { return nil }
