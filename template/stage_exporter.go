// SPDX-License-Identifier: Apache-2.0

package template

func exporter(*Draft) error { return nil }

func exportServer(*Draft) error { return nil }
