// SPDX-License-Identifier: Apache-2.0

// Package virtloom is the map of the module: the control plane of a virtual
// machine on Kubernetes, as packages that a Go program imports one at a time.
// The root package itself holds nothing but this text.
//
// Reading in the order in which a guest passes through:
//
//   - [github.com/virtloom/virtloom/vmi] decides what must happen next to a
//     VirtualMachineInstance; vmi/vmictrl is its controller, vmi/diagnose explains
//     to people what it waits for, and vmi/admit fills in and checks new ones
//     where KubeVirt's webhooks do not, by the rules of vmi/validate, which all
//     readers of a VMI share.
//   - [github.com/virtloom/virtloom/template] renders the Pods a guest needs;
//     template/render is what their stages are written with;
//     template/offline renders them from manifests, without a cluster;
//     template/templatectrl reads from a cluster what they are rendered from.
//   - [github.com/virtloom/virtloom/expectations] remembers own writes until the
//     caches show them, so that a stale cache never creates a second Pod;
//     expectations/expectationsctrl connects it to controller-runtime.
//   - [github.com/virtloom/virtloom/handoff] says who owns the guest, and is the
//     only way in which that changes.
//   - [github.com/virtloom/virtloom/domain] turns the object into a libvirt
//     domain, says what differs and what to do about it; domain/domainctrl is
//     the node's controller, domain/libvirt the driver, domain/memory an
//     in-memory hypervisor, and domain/domaintest the suite every driver passes.
//     Beside them are the parts of a node agent: domain/migrationproxy carries
//     migrations between nodes, domain/launcher reaches a hypervisor in a launcher
//     Pod, domain/nodectrl says what the node is, domain/workspace prepares the
//     files of VMIs, and domain/deviceplugin, domain/hostdevice, domain/cgroup,
//     domain/mounts and domain/network what else they need.
//   - [github.com/virtloom/virtloom/migration] decides which live migration may
//     start, in which order, and what is next; migration/migrationctrl is its
//     controller, and migration/migrationsim plays a cluster in which the same is
//     decided on a virtual clock.
//   - refdaemon composes all of it: "refdaemon controller" for the cluster,
//     "refdaemon node" for each node, "refdaemon launcher" in a Pod; without a
//     cluster "refdaemon render", "refdaemon convert" and "refdaemon diff"; and
//     "refdaemon explain" and "refdaemon plan", which only read one.
//
// Every controller has the same shape: gather reads, Decide is pure and returns
// a plan as data, act writes. API objects are KubeVirt's own (kubevirt.io/api),
// so either half works with the other half of a stock KubeVirt.
//
// The packages form layers whose arrows point down only; internal/archtest
// keeps them.
package virtloom
