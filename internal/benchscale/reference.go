// SPDX-License-Identifier: Apache-2.0

package main

// Names of phases.
const (
	phaseGuests  = "guests"
	phaseMoves   = "migrations"
	phaseWaiting = "waiting"
	phaseCached  = "cached"
	phaseFloor   = "floor"
	// phaseMachines and phaseStock start VirtualMachines, by virtloom and by KubeVirt's virt-controller.
	phaseMachines = "machines"
	phaseStock    = "machines, stock"
)

// Names of figures.
const (
	allPods        = "all Pods created"
	allScheduled   = "all Scheduled"
	scheduledP50   = "create to Scheduled, p50"
	scheduledP99   = "create to Scheduled, p99"
	allTargets     = "all target Pods created"
	allHandedOff   = "all handed off"
	allSucceeded   = "all Succeeded"
	firstTarget    = "first target Pod created"
	firstHandOff   = "first handed off"
	firstSucceeded = "first Succeeded"
	fiftySucceeded = "first 50 Succeeded"
	handOffP50     = "target Running to handed off, p50"
	handOffP99     = "target Running to handed off, p99"
	writesEach     = "writes each, without events"
	writesOfAll    = "writes each of all components, without events"
	withEvents     = "writes each, with events"
	rejectedEach   = "rejected writes each"
	controllerCPU  = "controller CPU"
	peakMemory     = "controller peak RSS"
	serverCPU      = "API server CPU"
	planeCPU       = "CPU of the whole control plane"
	idleCore       = "controller while all wait"
	heapEach       = "controller heap per guest"
	residentEach   = "controller RSS per guest"
	coldStart      = "cold start to ready, empty"
	coldStartFull  = "cold start to ready, all cached"
)

// stock is KubeVirt's virt-controller, measured by the same load on a machine like this one: two cores, 100
// simulated nodes, no virt-api, a stand-in that answers for the nodes (migrations: with a copy of 1 to 2
// seconds, limits 400 in all and 50 from a node; waiting: 5 and 2). Of several runs the best counts.
var stock = map[string]map[int]map[string]float64{
	phaseGuests: {
		10:   {allPods: .11, allScheduled: .39, scheduledP50: .4, scheduledP99: .4, controllerCPU: .2, peakMemory: 87, serverCPU: .8},
		100:  {allPods: 3.6, allScheduled: 4.32, scheduledP50: 3.7, scheduledP99: 4.2, controllerCPU: 1.4, peakMemory: 105, serverCPU: 5.8, writesEach: 6, withEvents: 7},
		500:  {allPods: 16.4, allScheduled: 19, scheduledP50: 17, scheduledP99: 19, controllerCPU: 6.9, peakMemory: 171, serverCPU: 22, writesEach: 6, withEvents: 7},
		1000: {allPods: 39, allScheduled: 45, scheduledP50: 41, scheduledP99: 45, controllerCPU: 16, peakMemory: 246, serverCPU: 53, planeCPU: 96, writesEach: 6, withEvents: 7},
	},
	// The least that any controller could do: a Pod and one write of each guest.
	phaseFloor: {
		100:  {allScheduled: 1.75},
		1000: {allScheduled: 17.3, serverCPU: 21.4, planeCPU: 35.6},
	},
	phaseMoves: {
		50:  {allTargets: 5.1, allHandedOff: 5.3, allSucceeded: 7, controllerCPU: 1.7, serverCPU: 7, writesEach: 19.6, withEvents: 22.6, rejectedEach: 3.4},
		200: {allTargets: 23.2, allHandedOff: 23.8, allSucceeded: 25.5, handOffP50: 1.1, controllerCPU: 7.7, serverCPU: 30, writesEach: 19.5, withEvents: 22.5, rejectedEach: 3.2},
	},
	phaseWaiting: {
		1000: {firstTarget: 2.3, firstHandOff: 7.8, firstSucceeded: 13.4, fiftySucceeded: 31.7, handOffP50: .08, handOffP99: 4.9, idleCore: .26, peakMemory: 271},
	},
}

// limit is what a figure may be at most: a number, or a share of what stock KubeVirt needs for as many.
type limit struct {
	figure string
	most   float64
	share  float64
	// guests is a share of what as many guests without VirtualMachines need, to which the creation of each is added.
	guests float64
}

// limits are the promises of this project, by phase.
var limits = map[string][]limit{
	phaseGuests: {
		{figure: allScheduled, share: .5}, {figure: controllerCPU, share: .5}, {figure: peakMemory, share: .7}, {figure: writesEach, most: 4},
	},
	phaseMachines: {{figure: allScheduled, share: .6}, {figure: writesOfAll, guests: 1.3}},
	phaseMoves:    {{figure: allHandedOff, share: .5}, {figure: writesEach, most: 9}, {figure: rejectedEach, most: .1}},
	phaseWaiting:  {{figure: firstTarget, most: .5}, {figure: handOffP99, most: .3}, {figure: idleCore, most: .01}},
	phaseCached:   {{figure: heapEach, most: 12}},
}

// compare fills in what stock KubeVirt needs and what the limits are, which may follow from the phases before.
func (p *Phase) compare(r *Report) {
	reference := stock[p.Name][p.N]
	if p.Name == phaseMachines {
		reference = r.values(phaseStock)
	}
	for i := range p.Figures {
		f := &p.Figures[i]
		if f.Stock = reference[f.Name]; f.Stock > 0 {
			f.Ratio = round3(f.Value / f.Stock)
		}
		for _, l := range limits[p.Name] {
			if l.figure != f.Name {
				continue
			}
			if f.Limit = l.most; l.share > 0 {
				f.Limit = round3(l.share * f.Stock) // none without a reference
			}
			if l.guests > 0 {
				f.Limit = round3(l.guests*r.values(phaseGuests)[f.Name] + 1)
			}
			f.Missed = f.Limit > 0 && f.Value > f.Limit
		}
	}
}
