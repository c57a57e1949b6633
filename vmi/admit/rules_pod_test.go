// SPDX-License-Identifier: Apache-2.0

package admit_test

// network returns a VMI with interfaces and networks.
func network(interfaces, networks string) string {
	return "{spec: {networks: [" + networks + "], domain: {devices: {interfaces: [" + interfaces + "]}}}}"
}

const ifaces = "spec.domain.devices.interfaces"

var networkRows = map[string]row{
	"networks: pairs":            {guest: network("{name: a, bridge: {}}", "{name: a, pod: {}}")},
	"networks: alone, twice":     {guest: network("{name: a}", "{name: a}, {name: a}, {name: 'b c'}"), want: "spec.networks[1].name " + twice("spec.networks[2].name")},
	"interfaces: pairs":          {guest: network("{name: a, bridge: {}}", "{name: a, pod: {}}")},
	"interfaces: alone, twice":   {guest: network("{name: a}, {name: a}, {name: b}", "{name: a}"), want: ifaces + "[1].name " + ifaces + "[2].name"},
	"network-sources: good":      {guest: network("", "{name: a, pod: {vmNetworkCIDR: 10.0.2.0/24, vmIPv6NetworkCIDR: 'fd10:0:2::/120'}}, {name: b, multus: {networkName: ns/nad}}")},
	"network-sources: bad":       {guest: network("", "{name: a}, {name: b, pod: {vmNetworkCIDR: 'fd10::/120', vmIPv6NetworkCIDR: x}}, {name: c, multus: {networkName: ''}}, {name: d, multus: {networkName: 'A/b c'}}"), want: "spec.networks[0] spec.networks[1].pod.vmNetworkCIDR spec.networks[1].pod.vmIPv6NetworkCIDR spec.networks[2].multus.networkName " + twice("spec.networks[3].multus.networkName")},
	"network-sources: claim off": {guest: network("", "{name: a, resourceClaim: {claimName: c}}"), want: "spec.networks[0].resourceClaim spec.networks[0].resourceClaim.requestName spec.networks[0].resourceClaim.claimName"},
	"one-pod-network: one":       {guest: network("", "{name: a, pod: {}}, {name: b, multus: {networkName: x}}")},
	"one-pod-network: two":       {guest: network("", "{name: a, pod: {}}, {name: b, multus: {networkName: x, default: true}}"), want: "spec.networks[1]"},
	"pod-network: bridge":        {},
	"pod-network: masquerade":    {kubevirt: "network: {defaultNetworkInterface: masquerade, permitBridgeInterfaceOnPodNetwork: false}"},
	"pod-network: none wanted":   {guest: devices("autoattachPodInterface: false"), kubevirt: "network: {defaultNetworkInterface: slirp}"},
	"pod-network: not permitted": {kubevirt: "network: {permitBridgeInterfaceOnPodNetwork: false}", want: ifaces},
	"pod-network: removed":       {kubevirt: "network: {defaultNetworkInterface: slirp}", want: ifaces},
	"bindings: good":             {guest: network("{name: a, masquerade: {}}, {name: b, sriov: {}}, {name: c}, {name: d, binding: {name: p}}", "{name: a, pod: {}}, {name: b, multus: {networkName: x}}, {name: c, multus: {networkName: x}}, {name: d, multus: {networkName: x}}"), kubevirt: "network: {binding: {p: {}}}"},
	"bindings: two":              {guest: network("{name: a, masquerade: {}, bridge: {}}", "{name: a, pod: {}}"), want: ifaces + "[0]"},
	"bindings: gone, unknown":    {guest: network("{name: a, slirp: {}}, {name: b, binding: {name: p}}", "{name: a, pod: {}}"), want: ifaces + "[0].slirp " + ifaces + "[1].binding.name"},
	"bindings: other network":    {guest: network("{name: a, sriov: {}}, {name: b, masquerade: {}}", "{name: a, pod: {}}, {name: b, multus: {networkName: x}}"), want: ifaces + "[0].sriov " + ifaces + "[1].masquerade"},
	"bindings: bridge forbidden": {guest: network("{name: a}", "{name: a, pod: {}}"), kubevirt: "network: {permitBridgeInterfaceOnPodNetwork: false}", want: ifaces + "[0].bridge"},
	"mac-addresses: good":        {guest: network("{name: a, macAddress: '02:00:00:12:34:56'}, {name: b, macAddress: DE-AD-00-00-BE-AF}", "")},
	"mac-addresses: bad":         {guest: network("{name: a, macAddress: x}, {name: b, macAddress: '01:00:00:00:00:00'}, {name: c, macAddress: '02:00:00:00:00:0a'}, {name: d, macAddress: '02:00:00:00:00:0A'}", ""), want: ifaces + "[0].macAddress " + ifaces + "[1].macAddress " + ifaces + "[3].macAddress"},
	"cards: good":                {guest: network("{name: a, model: e1000, pciAddress: '0000:81:01.0', acpiIndex: 5, state: down}", "")},
	"cards: bad":                 {guest: network("{name: a, model: x, pciAddress: x, acpiIndex: 99999, state: x}, {name: b, acpiIndex: 1}, {name: c, acpiIndex: 1, sriov: {}, state: down}", ""), want: ifaces + "[0].model " + ifaces + "[0].pciAddress " + ifaces + "[0].acpiIndex " + ifaces + "[0].state " + ifaces + "[2].acpiIndex " + ifaces + "[2].state"},
	"ports: good":                {guest: network("{name: a, ports: [{name: http, port: 80}, {port: 53, protocol: UDP}]}, {name: b, masquerade: {}, portRanges: [{protocol: TCP, start: 1, end: 9}]}", "")},
	"ports: bad":                 {guest: network("{name: a, ports: [{name: Http, port: 0, protocol: ICMP}, {name: x, port: 1}, {name: x, port: 2}]}", ""), want: ifaces + "[0].ports[0].protocol " + ifaces + "[0].ports[0].port " + ifaces + "[0].ports[0].name " + ifaces + "[0].ports[2].name"},
	"ports: ranges":              {guest: network("{name: a, bridge: {}, portRanges: [{protocol: TCP, start: 9, end: 1}, {protocol: TCP, start: 0, end: 70000}]}", ""), want: ifaces + "[0].portRanges " + ifaces + "[0].portRanges[0].end " + ifaces + "[0].portRanges[1].start " + ifaces + "[0].portRanges[1].end"},
	"dhcp-options: good":         {guest: network("{name: a, dhcpOptions: {ntpServers: [10.0.0.1], privateOptions: [{option: 240, value: x}]}}", "")},
	"dhcp-options: bad":          {guest: network("{name: a, dhcpOptions: {ntpServers: ['::1', x], privateOptions: [{option: 1, value: x}, {option: 240, value: x}, {option: 240, value: z}]}}", ""), want: ifaces + "[0].dhcpOptions.ntpServers[0] " + ifaces + "[0].dhcpOptions.ntpServers[1] " + ifaces + "[0].dhcpOptions.privateOptions[0].option " + ifaces + "[0].dhcpOptions.privateOptions[2].option"},
}

var podRows = map[string]row{
	"hostname: label":        {guest: "{spec: {hostname: web-1, subdomain: sub}}"},
	"hostname: no label":     {guest: "{spec: {hostname: Web, subdomain: a.b}}", want: "spec.hostname spec.subdomain"},
	"dns: good":              {guest: "{spec: {dnsPolicy: None, dnsConfig: {nameservers: [10.0.0.10], searches: [a.b., .], options: [{name: ndots}]}}}"},
	"dns: bad":               {guest: "{spec: {dnsPolicy: Some, dnsConfig: {nameservers: [a, 1.1.1.1, 1.1.1.1, 1.1.1.1], searches: ['a b'], options: [{value: x}]}}}", want: "spec.dnsPolicy spec.dnsConfig.nameservers spec.dnsConfig.nameservers[0] spec.dnsConfig.searches[0] spec.dnsConfig.options[0].name"},
	"dns: none":              {guest: "{spec: {dnsPolicy: None}}", want: "spec.dnsConfig.nameservers"},
	"dns: searches":          {guest: "{spec: {dnsConfig: {searches: [" + tooLong + "]}}}", want: "spec.dnsConfig.searches spec.dnsConfig.searches[0]"},
	"grace-period: good":     {guest: "{spec: {terminationGracePeriodSeconds: 0}}"},
	"grace-period: negative": {guest: "{spec: {terminationGracePeriodSeconds: -1}}", want: "spec.terminationGracePeriodSeconds"},
	"strategies: known":      {guest: "{spec: {evictionStrategy: LiveMigrateIfPossible, startStrategy: Paused}}"},
	"strategies: unknown":    {guest: "{spec: {evictionStrategy: Fly, startStrategy: Slow}}", want: "spec.evictionStrategy spec.startStrategy"},
	"references: good":       {guest: "{spec: {priorityClassName: high, serviceAccountName: sa}}"},
	"references: bad":        {guest: "{spec: {priorityClassName: 'a b', serviceAccountName: A, schedulerName: _}}", want: "spec.priorityClassName spec.serviceAccountName spec.schedulerName"},
	"probes: good":           {guest: "{spec: {readinessProbe: {httpGet: {port: 80, scheme: HTTPS, httpHeaders: [{name: X-A, value: x}]}}, livenessProbe: {guestAgentPing: {}}}}"},
	"probes: kinds":          {guest: "{spec: {readinessProbe: {}, livenessProbe: {successThreshold: 2, exec: {command: []}, tcpSocket: {port: 0}}}}", want: "spec.readinessProbe spec.livenessProbe spec.livenessProbe.exec.command spec.livenessProbe.tcpSocket.port spec.livenessProbe.successThreshold"},
	"probes: values":         {guest: "{spec: {readinessProbe: {initialDelaySeconds: -1, timeoutSeconds: 2147483647, httpGet: {port: A_B, scheme: FTP, httpHeaders: [{name: 'a b', value: x}]}}}}", want: "spec.readinessProbe.initialDelaySeconds spec.readinessProbe.timeoutSeconds spec.readinessProbe.httpGet.port spec.readinessProbe.httpGet.scheme spec.readinessProbe.httpGet.httpHeaders[0].name"},
}

const nodeTerms = "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms"

var schedulingRows = map[string]row{
	"node-selector: good":  {guest: "{spec: {nodeSelector: {example.com/a: b}}}"},
	"node-selector: bad":   {guest: "{spec: {nodeSelector: {a_/b: 'c d'}}}", want: "spec.nodeSelector spec.nodeSelector[a_/b]"},
	"tolerations: good":    {guest: "{spec: {tolerations: [{operator: Exists}, {key: a, value: b, effect: NoExecute, tolerationSeconds: 3}, {key: size, operator: Gt, value: '5'}]}}"},
	"tolerations: bad":     {guest: "{spec: {tolerations: [{operator: Equal}, {key: 'a b', operator: Exists, value: x, effect: Go, tolerationSeconds: 3}, {key: size, operator: Lt, value: x}, {key: size, operator: Like}, {key: size, value: 'a b'}]}}", want: "spec.tolerations[0].operator spec.tolerations[1].key spec.tolerations[1].value spec.tolerations[1].effect spec.tolerations[1].tolerationSeconds spec.tolerations[2].value spec.tolerations[3].operator spec.tolerations[4].value"},
	"spread: good":         {guest: "{spec: {topologySpreadConstraints: [{maxSkew: 1, topologyKey: zone, whenUnsatisfiable: DoNotSchedule, minDomains: 2, labelSelector: {matchLabels: {a: b}}}]}}"},
	"spread: bad":          {guest: "{spec: {topologySpreadConstraints: [{maxSkew: 0, topologyKey: '', whenUnsatisfiable: Wait, minDomains: 0, labelSelector: {matchLabels: {'a b': c}}}, {maxSkew: 1, topologyKey: zone, whenUnsatisfiable: ''}]}}", want: "spec.topologySpreadConstraints[0].maxSkew spec.topologySpreadConstraints[0].topologyKey spec.topologySpreadConstraints[0].whenUnsatisfiable spec.topologySpreadConstraints[0].minDomains spec.topologySpreadConstraints[0].labelSelector.matchLabels spec.topologySpreadConstraints[1].whenUnsatisfiable"},
	"node-affinity: good":  {guest: "{spec: {affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchExpressions: [{key: a, operator: In, values: [b]}, {key: a, operator: Exists}, {key: a, operator: Gt, values: ['1']}]}]}}}}}"},
	"node-affinity: bad":   {guest: "{spec: {affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchExpressions: [{key: 'a b', operator: In}, {key: a, operator: Like}]}]}, preferredDuringSchedulingIgnoredDuringExecution: [{weight: 0, preference: {}}]}}}}", want: nodeTerms + "[0].matchExpressions[0].key " + nodeTerms + "[0].matchExpressions[0].values " + nodeTerms + "[0].matchExpressions[1].operator spec.affinity.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution[0].weight"},
	"node-affinity: empty": {guest: "{spec: {affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: []}}}}}", want: nodeTerms},
	"pod-affinity: good":   {guest: "{spec: {affinity: {podAffinity: {requiredDuringSchedulingIgnoredDuringExecution: [{topologyKey: zone, labelSelector: {matchLabels: {a: b}}}]}}}}"},
	"pod-affinity: bad":    {guest: "{spec: {affinity: {podAntiAffinity: {requiredDuringSchedulingIgnoredDuringExecution: [{topologyKey: '', namespaces: [A]}], preferredDuringSchedulingIgnoredDuringExecution: [{weight: 101, podAffinityTerm: {topologyKey: zone}}]}}}}", want: "spec.affinity.podAntiAffinity.requiredDuringSchedulingIgnoredDuringExecution[0].topologyKey spec.affinity.podAntiAffinity.requiredDuringSchedulingIgnoredDuringExecution[0].namespaces[0] spec.affinity.podAntiAffinity.preferredDuringSchedulingIgnoredDuringExecution[0].weight"},
}
