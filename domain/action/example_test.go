// SPDX-License-Identifier: Apache-2.0

package action_test

import (
	"errors"
	"fmt"

	"libvirt.org/go/libvirtxml"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/action"
)

// Which actions need a fresh read of the API server, and which fail alone, is a property of each.
func ExampleAction() {
	disk := &libvirtxml.DomainDisk{Alias: &libvirtxml.DomainAlias{Name: domain.AliasPrefix + "data"}}
	attach := domain.Operation{Verb: domain.AttachDevice, Domain: "shop_web", Device: disk}
	for _, a := range []action.Action{
		{Verb: action.Prepare, Why: "the VMI is assigned to this node"},
		{Verb: action.Apply, Operation: domain.Operation{Verb: domain.SetMetadata, Domain: "shop_web"}, Why: "a user has requested a pause"},
		{Verb: action.Apply, Operation: attach, Why: "disk data is missing"},
		{Verb: action.Cleanup, Why: "the domain has ended"},
	} {
		fmt.Printf("%s: touches the guest: %t, fails alone: %t\n", a, a.TouchesDomain(), a.Independent())
	}
	// Output:
	// Prepare (the VMI is assigned to this node): touches the guest: false, fails alone: false
	// SetMetadata shop_web (a user has requested a pause): touches the guest: false, fails alone: false
	// AttachDevice shop_web (disk data is missing): touches the guest: true, fails alone: true
	// Cleanup (the domain has ended): touches the guest: true, fails alone: false
}

// A failure is news only once, although its text has a time stamp.
func ExampleFailure() {
	grow := action.Action{Verb: action.Apply, Operation: domain.Operation{Verb: domain.ResizeDisk, Domain: "shop_web", Disk: "ua-data"}}
	first := action.Failure{Action: grow, Err: errors.New("12:00:01: no space left")}
	again := action.Failure{Action: grow, Err: errors.New("12:00:31: no space left")}
	fmt.Println(again)
	fmt.Println("same cause:", again.SameCause(first))
	// Output:
	// ResizeDisk ua-data: 12:00:31: no space left
	// same cause: true
}
