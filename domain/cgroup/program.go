// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"fmt"

	"github.com/cilium/ebpf/asm"
)

// Offsets in the context of the program (linux/bpf.h: struct bpf_cgroup_dev_ctx).
const (
	offsetAccess = 0 // kind in the lower half, access in the upper one
	offsetMajor  = 4
	offsetMinor  = 8

	kindBlock = 1
	kindChar  = 2
)

// program returns a filter that allows exactly what one of the rules allows. It does not depend on
// the order of rules.
func program(rules []Rule) asm.Instructions {
	// r2 kind, r3 access, r4 major, r5 minor
	out := asm.Instructions{
		asm.LoadMem(asm.R3, asm.R1, offsetAccess, asm.Word),
		asm.Mov.Reg32(asm.R2, asm.R3),
		asm.And.Imm32(asm.R2, 0xffff),
		asm.RSh.Imm32(asm.R3, 16),
		asm.LoadMem(asm.R4, asm.R1, offsetMajor, asm.Word),
		asm.LoadMem(asm.R5, asm.R1, offsetMinor, asm.Word),
	}
	label := func(i int) string { return fmt.Sprintf("rule%d", i) }
	rules = normal(rules)
	for i, r := range rules {
		kind, next := int32(kindChar), label(i+1)
		if r.Kind == Block {
			kind = kindBlock
		}
		block := asm.Instructions{asm.JNE.Imm32(asm.R2, kind, next).WithSymbol(label(i))}
		if r.Major != Any {
			block = append(block, asm.JNE.Imm32(asm.R4, int32(uint32(r.Major)), next)) //nolint:gosec // bit pattern
		}
		if r.Minor != Any {
			block = append(block, asm.JNE.Imm32(asm.R5, int32(uint32(r.Minor)), next)) //nolint:gosec // bit pattern
		}
		if r.Access != All {
			block = append(block,
				asm.Mov.Reg32(asm.R1, asm.R3),
				asm.And.Imm32(asm.R1, int32(^r.Access&All)), //nolint:gosec // only three bits are set
				asm.JNE.Imm32(asm.R1, 0, next))
		}
		out = append(out, append(block, asm.Mov.Imm32(asm.R0, 1), asm.Return())...)
	}
	return append(out, asm.Mov.Imm32(asm.R0, 0).WithSymbol(label(len(rules))), asm.Return())
}
