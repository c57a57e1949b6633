// SPDX-License-Identifier: Apache-2.0

package launcher

import (
	"fmt"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/launcher/launcherpb"
)

// syncToWire converts an operation that changes the domain.
func syncToWire(op domain.Operation) (*launcherpb.SyncRequest, error) {
	out := &launcherpb.SyncRequest{Domain: op.Domain}
	switch op.Verb {
	case domain.Start:
		xml, err := op.Definition.Marshal()
		if err != nil {
			return nil, fmt.Errorf("%s: %w: %w", op, domain.ErrInvalid, err)
		}
		out.Change = &launcherpb.SyncRequest_Start{Start: &launcherpb.Start{Definition: xml, Paused: op.Paused}}
	case domain.SetMetadata:
		xml, err := op.Metadata.XML()
		if err != nil {
			return nil, fmt.Errorf("%s: %w", op, err)
		}
		out.Change = &launcherpb.SyncRequest_Metadata{Metadata: xml}
	case domain.SetVCPUs:
		out.Change = &launcherpb.SyncRequest_Vcpus{Vcpus: uint64(op.VCPUs)}
	case domain.ResizeDisk:
		out.Change = &launcherpb.SyncRequest_ResizeDisk{ResizeDisk: &launcherpb.ResizeDisk{Alias: op.Disk, Bytes: op.Bytes}}
	default:
		return out, deviceToWire(op, out)
	}
	return out, nil
}

func deviceToWire(op domain.Operation, out *launcherpb.SyncRequest) error {
	xml, err := op.Device.Marshal()
	if err != nil {
		return fmt.Errorf("%s: %w: %w", op, domain.ErrInvalid, err)
	}
	d := &launcherpb.Device{Xml: xml}
	switch op.Verb {
	case domain.AttachDevice:
		out.Change = &launcherpb.SyncRequest_Attach{Attach: d}
	case domain.DetachDevice:
		out.Change = &launcherpb.SyncRequest_Detach{Detach: d}
	case domain.UpdateDevice:
		out.Change = &launcherpb.SyncRequest_Update{Update: d}
	default:
		return fmt.Errorf("%s: %w", op, domain.ErrUnsupported)
	}
	return nil
}

// syncFromWire converts a request to the operation.
func syncFromWire(in *launcherpb.SyncRequest) (op domain.Operation, err error) {
	op.Domain = in.Domain
	switch c := in.Change.(type) {
	case *launcherpb.SyncRequest_Start:
		op.Verb, op.Paused = domain.Start, c.Start.GetPaused()
		op.Definition, err = definitionFromXML(c.Start.GetDefinition())
	case *launcherpb.SyncRequest_Attach:
		op.Verb = domain.AttachDevice
		op.Device, err = deviceFromXML(c.Attach.GetXml())
	case *launcherpb.SyncRequest_Detach:
		op.Verb = domain.DetachDevice
		op.Device, err = deviceFromXML(c.Detach.GetXml())
	case *launcherpb.SyncRequest_Update:
		op.Verb = domain.UpdateDevice
		op.Device, err = deviceFromXML(c.Update.GetXml())
	case *launcherpb.SyncRequest_Metadata:
		op.Verb = domain.SetMetadata
		op.Metadata, err = metadataFromXML(c.Metadata)
	case *launcherpb.SyncRequest_Vcpus:
		op.Verb, op.VCPUs = domain.SetVCPUs, uint(c.Vcpus)
	case *launcherpb.SyncRequest_ResizeDisk:
		op.Verb, op.Disk, op.Bytes = domain.ResizeDisk, c.ResizeDisk.GetAlias(), c.ResizeDisk.GetBytes()
	default:
		err = fmt.Errorf("sync %s: the launcher does not support this change; update the launcher: %w", in.Domain, domain.ErrUnsupported)
	}
	if err != nil && op.Verb != "" {
		err = fmt.Errorf("%s: %w", op, err)
	}
	return op, err
}
