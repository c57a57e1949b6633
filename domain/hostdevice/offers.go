// SPDX-License-Identifier: Apache-2.0

package hostdevice

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/utils/clock"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/domain/deviceplugin"
)

// DefaultEvery is the default period of looking for devices.
const DefaultEvery = 10 * time.Second

// vfioPermissions are those of KubeVirt's plugins.
const vfioPermissions = "mrw"

// Offers offers a node's permitted devices to its kubelet. Set its fields before Start; those without
// a default are required.
type Offers struct {
	// Host is the node.
	Host Host
	// Settings returns the KubeVirt object of the cluster, nil if there is none. It is called every
	// time devices are looked for, so it should answer from memory.
	Settings func(ctx context.Context) (*v1.KubeVirt, error)
	// Folder and Root are those of [deviceplugin.Plugin].
	Folder, Root string
	// Every is the period of looking for devices, and at the KubeVirt object. Defaults to
	// DefaultEvery.
	Every time.Duration
	// Clock defaults to the real one.
	Clock clock.WithTicker

	running map[string]*offer
	// logged is the last error, which is logged once.
	logged string
}

// offer is a resource that is offered.
type offer struct {
	plugin *deviceplugin.Plugin
	end    context.CancelFunc
	over   chan struct{}
}

// Start offers devices until ctx ends, and then withdraws them.
func (o *Offers) Start(ctx context.Context) error {
	if o.Every == 0 {
		o.Every = DefaultEvery
	}
	if o.Clock == nil {
		o.Clock = clock.RealClock{}
	}
	o.running = map[string]*offer{}
	defer o.withdraw(nil)
	ticks := o.Clock.NewTicker(o.Every)
	defer ticks.Stop()
	for ctx.Err() == nil {
		o.look(ctx)
		select {
		case <-ctx.Done():
		case <-ticks.C():
		}
	}
	return nil
}

// look compares what is offered with what is permitted and there.
func (o *Offers) look(ctx context.Context) {
	log := logr.FromContextOrDiscard(ctx)
	kv, err := o.Settings(ctx)
	if err != nil {
		o.report(log, err) // all stays as it is
		return
	}
	var permitted *v1.PermittedHostDevices
	if kv != nil {
		permitted = kv.Spec.Configuration.PermittedHostDevices
	}
	found, err := o.Host.Find(permitted)
	o.withdraw(provided(permitted))
	for _, resource := range slices.Sorted(maps.Keys(found)) {
		if r := o.running[resource]; r != nil {
			err = errors.Join(err, r.plugin.Update(found[resource]))
			continue
		}
		log.Info("Offering host devices", "resource", resource, "devices", len(found[resource]))
		o.offer(ctx, resource, found[resource])
	}
	// What is permitted and not found may have been there before.
	for resource, r := range o.running {
		if len(found[resource]) == 0 {
			err = errors.Join(err, r.plugin.Update(nil))
		}
	}
	o.report(log, err)
}

// report logs an error unless it is the same as before.
func (o *Offers) report(log logr.Logger, err error) {
	text := ""
	if err != nil {
		text = err.Error()
	}
	if text != o.logged && err != nil {
		log.Error(err, "Not all host devices can be offered")
	}
	o.logged = text
}

// provided are the permitted resources that are not left to others.
func provided(permitted *v1.PermittedHostDevices) map[string]bool {
	out := map[string]bool{}
	if permitted == nil {
		return out
	}
	for _, e := range permitted.PciHostDevices {
		out[e.ResourceName] = out[e.ResourceName] || !e.ExternalResourceProvider
	}
	for _, e := range permitted.MediatedDevices {
		out[e.ResourceName] = out[e.ResourceName] || !e.ExternalResourceProvider
	}
	for _, e := range permitted.USB {
		out[e.ResourceName] = out[e.ResourceName] || !e.ExternalResourceProvider
	}
	return out
}

// offer starts the plugin of a resource.
func (o *Offers) offer(ctx context.Context, resource string, units []deviceplugin.Unit) {
	ctx, end := context.WithCancel(ctx)
	p := &deviceplugin.Plugin{
		Device: deviceplugin.Device{Name: resource, Units: units, Permissions: vfioPermissions}, Folder: o.Folder, Root: o.Root, Clock: o.Clock,
	}
	r := &offer{plugin: p, end: end, over: make(chan struct{})}
	o.running[resource] = r
	go func() {
		defer close(r.over)
		if err := p.Start(ctx); err != nil {
			logr.FromContextOrDiscard(ctx).Error(err, "Host devices cannot be offered", "resource", resource)
		}
	}()
}

// withdraw ends the plugins of all resources but these, each with an empty list for the kubelet.
func (o *Offers) withdraw(but map[string]bool) {
	for resource, r := range o.running {
		if !but[resource] {
			r.end()
		}
	}
	for resource, r := range o.running {
		if !but[resource] {
			<-r.over
			delete(o.running, resource)
		}
	}
}
