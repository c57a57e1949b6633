// SPDX-License-Identifier: Apache-2.0

package launcher

import (
	"errors"
	"fmt"

	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	protobuf "google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// Bounds of an answer of a launcher, which is not trusted: a message in bytes, its fields and list
// elements in all, and its depth. Two bytes can make a message of a hundred.
const (
	maxAnswer = 4 << 20
	maxFields = 1 << 16
	maxNested = 16
)

var errBounds = errors.New("the message is malformed, has too many fields or is nested too deep")

// codec decodes messages within the bounds only.
type codec struct{}

var _ encoding.CodecV2 = codec{}

// Name implements encoding.CodecV2.
func (codec) Name() string { return proto.Name }

// Marshal implements encoding.CodecV2.
func (codec) Marshal(v any) (mem.BufferSlice, error) {
	return encoding.GetCodecV2(proto.Name).Marshal(v)
}

// Unmarshal implements encoding.CodecV2.
func (codec) Unmarshal(data mem.BufferSlice, v any) error {
	m, is := v.(protobuf.Message)
	if !is {
		return fmt.Errorf("launcher: %T is not a message", v)
	}
	raw := data.Materialize()
	left := maxFields
	if err := countFields(raw, m.ProtoReflect().Descriptor(), 0, &left); err != nil {
		return err
	}
	return protobuf.Unmarshal(raw, m)
}

// countFields counts the fields of a message and those nested in it, down from left.
func countFields(raw []byte, of protoreflect.MessageDescriptor, depth int, left *int) error {
	if depth > maxNested {
		return errBounds
	}
	for len(raw) > 0 {
		number, kind, n := protowire.ConsumeTag(raw)
		if n < 0 {
			return errBounds
		}
		raw = raw[n:]
		length := protowire.ConsumeFieldValue(number, kind, raw)
		if length < 0 {
			return errBounds
		}
		if err := measureField(raw[:length], kind, of.Fields().ByNumber(number), depth, left); err != nil {
			return err
		}
		raw = raw[length:]
	}
	return nil
}

func measureField(value []byte, kind protowire.Type, f protoreflect.FieldDescriptor, depth int, left *int) error {
	*left--
	if kind == protowire.BytesType && f != nil {
		inner, _ := protowire.ConsumeBytes(value)
		switch {
		case f.Message() != nil:
			if err := countFields(inner, f.Message(), depth+1, left); err != nil {
				return err
			}
		case f.Kind() != protoreflect.StringKind && f.Kind() != protoreflect.BytesKind:
			*left -= len(inner) // a packed list has an element for each byte at most
		}
	}
	if *left < 0 {
		return errBounds
	}
	return nil
}
