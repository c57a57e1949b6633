// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package libvirt

/*
#cgo LDFLAGS: -ldl
#include <stdlib.h>
#include "bulk.h"
*/
import "C"

import (
	"fmt"
	"unsafe"

	virt "libvirt.org/go/libvirt"
)

// record is the result of a bulk query for one domain. The counters have libvirt's names:
// state.state, vcpu.0.time.
type record struct {
	name, uuid string
	numbers    map[string]uint64
	texts      map[string]string
}

// bulk queries groups of counters of all domains in one call. The binding's GetAllDomainStats would
// call the daemon once more for each domain, whatever the groups: with 500 domains that is 500
// round trips for a list.
func bulk(c *virt.Connect, groups virt.DomainStatsTypes, flags virt.ConnectGetAllDomainStatsFlags) ([]record, error) {
	conn, err := c.RawPtr()
	if err != nil {
		return nil, err
	}
	defer func() { _, _ = virt.CloseRawPtr(conn) }()
	var list **C.bulkRecord
	var code C.int
	var message *C.char
	n := C.bulkStats(unsafe.Pointer(conn), C.uint(groups), C.uint(flags), &list, &code, &message)
	if n < 0 {
		defer C.free(unsafe.Pointer(message))
		return nil, virt.Error{Code: virt.ErrorNumber(code), Message: C.GoString(message)}
	}
	defer C.bulkFree(list)
	out := make([]record, 0, int(n))
	for _, in := range unsafe.Slice(list, int(n)) {
		r, err := newRecord(in)
		if err != nil {
			return nil, err
		}
		out = append(out, r)
	}
	return out, nil
}

func newRecord(in *C.bulkRecord) (record, error) {
	var uuid [37]C.char
	name := C.bulkIdentity(in, &uuid[0])
	if name == nil {
		return record{}, fmt.Errorf("libvirt: listed domain without a name")
	}
	r := record{name: C.GoString(name), uuid: C.GoString(&uuid[0]), numbers: map[string]uint64{}, texts: map[string]string{}}
	params := unsafe.Slice(in.params, int(in.nparams))
	for i := range params { // in place, for C's alignment: a copy of Go's may differ
		r.add(&params[i])
	}
	return r, nil
}

// add adds one parameter; rates, which are fractions, are not counted.
func (r *record) add(p *C.bulkParam) {
	field, v := C.GoString(&p.field[0]), unsafe.Pointer(&p.value)
	switch p._type {
	case C.BULK_INT:
		r.numbers[field] = uint64(*(*C.int)(v))
	case C.BULK_UINT:
		r.numbers[field] = uint64(*(*C.uint)(v))
	case C.BULK_LLONG:
		r.numbers[field] = uint64(*(*C.longlong)(v))
	case C.BULK_ULLONG:
		r.numbers[field] = uint64(*(*C.ulonglong)(v))
	case C.BULK_BOOLEAN:
		r.numbers[field] = uint64(*(*C.char)(v))
	case C.BULK_STRING:
		r.texts[field] = C.GoString(*(**C.char)(v))
	}
}
