// SPDX-License-Identifier: Apache-2.0

package workspace

import (
	"context"
	"fmt"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/convert"
)

// claimDisks are the disks in claims.
type claimDisks struct{ Claims }

// locate finds the data of a claim.
func (c claimDisks) locate(ctx context.Context, v volume, field, name string) (Claim, error) {
	if c.Claims == nil {
		return Claim{}, v.fault(field, "claims are not supported on this node", "configure the node's claims", nil)
	}
	at, err := c.Claims.Locate(ctx, v.vmi.Namespace, name)
	if err != nil {
		return Claim{}, v.fault(field, fmt.Sprintf("cannot locate the data of claim %q on the node", name),
			"bind the claim to a volume this node can reach", err)
	}
	return at, nil
}

// writable returns the disk in a claim, which is made if there is none, and grows with its claim.
func (c claimDisks) writable(ctx context.Context, v volume, field, name string) (convert.DiskSource, error) {
	at, err := c.locate(ctx, v, field, name)
	if err != nil {
		return convert.DiskSource{}, err
	}
	src := v.claimAt(at, diskImage)
	if at.Block {
		src.Bytes, err = v.present(ctx, field, &src)
		return src, err
	}
	if err := v.image(ctx, field, &src, usable(v.claimInfo(), at.Bytes)); err != nil {
		return src, err
	}
	src.Bytes, err = v.grow(ctx, field, &src, at.Bytes)
	return src, err
}

// ephemeral puts a writable overlay over the disk of a claim, which stays unchanged.
func (c claimDisks) ephemeral(ctx context.Context, v volume) (convert.DiskSource, error) {
	const field = "ephemeral.persistentVolumeClaim.claimName"
	if v.Ephemeral.PersistentVolumeClaim == nil {
		return convert.DiskSource{}, v.fault("ephemeral", "Required value: persistentVolumeClaim", "name a claim", domain.ErrInvalid)
	}
	at, err := c.locate(ctx, v, field, v.Ephemeral.PersistentVolumeClaim.ClaimName)
	if err != nil {
		return convert.DiskSource{}, err
	}
	base := v.claimAt(at, diskImage)
	base.ReadOnly = true
	bytes, err := v.present(ctx, field, &base)
	if err != nil {
		return convert.DiskSource{}, err
	}
	overlay := v.file(".qcow2")
	if err := overlayOf(ctx, overlay, base, bytes); err != nil {
		return convert.DiskSource{}, v.fault(field, "cannot create an overlay for the claim's disk", "check the space on the node", err)
	}
	return convert.DiskSource{Path: overlay, Format: "qcow2", Backing: &base}, nil
}
