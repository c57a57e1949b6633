// SPDX-License-Identifier: Apache-2.0

package validate_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/virtloom/virtloom/vmi/validate"
)

// structureRows are VMIs, by the fields with structural faults.
var structureRows = map[string]struct{ guest, want string }{
	"nothing":                 {"{}", ""},
	"amount":                  {"{spec: {domain: {memory: {guest: -1Gi}}}}", "spec.domain.memory.guest"},
	"no memory":               {"{spec: {domain: {memory: {guest: 0}}}}", "spec.domain.memory.guest"},
	"disk twice":              {"{spec: {volumes: [{name: a, emptyDisk: {capacity: 1Gi}}], domain: {devices: {disks: [{name: a}, {name: a}]}}}}", "spec.domain.devices.disks[1].name"},
	"volume, two sources":     {"{spec: {volumes: [{name: a, emptyDisk: {capacity: 1Gi}, configMap: {name: x}}]}}", "spec.volumes[0]"},
	"request above limit":     {"{spec: {domain: {resources: {requests: {memory: 2Gi}, limits: {memory: 1Gi}}}}}", "spec.domain.resources.requests.memory"},
	"shared volume, plugged":  {"{spec: {volumes: [{name: a, configMap: {name: x}}], domain: {devices: {filesystems: [{name: a, virtiofs: {}}]}}}, status: {volumeStatus: [{name: a, target: '', hotplugVolume: {}}]}}", "spec.domain.devices.filesystems[0].name"},
	"spread twice":            {"{spec: {topologySpreadConstraints: [{maxSkew: 1, topologyKey: a, whenUnsatisfiable: DoNotSchedule}, {maxSkew: 1, topologyKey: a, whenUnsatisfiable: DoNotSchedule}]}}", "spec.topologySpreadConstraints[1]"},
	"spread, unknown policy":  {"{spec: {topologySpreadConstraints: [{maxSkew: 1, topologyKey: a, whenUnsatisfiable: DoNotSchedule, nodeTaintsPolicy: x}]}}", "spec.topologySpreadConstraints[0].nodeTaintsPolicy"},
	"keys without a selector": {"{spec: {affinity: {podAffinity: {requiredDuringSchedulingIgnoredDuringExecution: [{topologyKey: a, matchLabelKeys: [b]}]}}}}", "spec.affinity.podAffinity.requiredDuringSchedulingIgnoredDuringExecution[0].labelSelector"},
	"field of a node":         {"{spec: {affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchFields: [{key: x, operator: In, values: [a]}]}]}}}}}", "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[0].matchFields[0].key"},
	"value of a node's label": {"{spec: {affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchExpressions: [{key: x, operator: In, values: [a b]}]}]}}}}}", "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[0].matchExpressions[0].values[0]"},
}

func TestStructure(t *testing.T) {
	for name, r := range structureRows {
		var fields []string
		for _, f := range validate.Structure(parse(t, r.guest)) {
			fields = append(fields, f.Field)
			if f.Reason == "" || f.Remedy == "" || len(f.Text()) > 300 {
				t.Errorf("%s: incomplete %+v", name, f)
			}
		}
		if !slices.Equal(fields, strings.Fields(r.want)) {
			t.Errorf("%s: %q, want %q", name, fields, r.want)
		}
	}
}

// onlyNew are VMIs that must not be created and, if they exist, can be rendered, by the field of the fault.
var onlyNew = map[string]string{
	"{spec: {domain: {memory: {guest: 1000}}}}":                                                                                     "spec.domain.memory.guest",
	"{spec: {domain: {ioThreads: {supplementalPoolThreadCount: 2000}}}}":                                                            "spec.domain.ioThreads.supplementalPoolThreadCount",
	"{spec: {domain: {cpu: {cores: 2, dedicatedCpuPlacement: true}, resources: {limits: {cpu: 1500m}}}}}":                           "spec.domain.resources.limits.cpu",
	"{spec: {volumes: [{name: a, emptyDisk: {capacity: 1Gi}}], domain: {devices: {disks: [{name: a, lun: {bus: sata}}]}}}}":         "spec.domain.devices.disks[0].lun.bus",
	"{spec: {volumes: [{name: a, persistentVolumeClaim: {claimName: A_b}}]}}":                                                       "spec.volumes[0].persistentVolumeClaim.claimName",
	"{spec: {volumes: [{name: a, memoryDump: {claimName: ''}}]}}":                                                                   "spec.volumes[0].memoryDump.claimName",
	"{spec: {volumes: [{name: a, sysprep: {secret: {name: s}, configMap: {name: c}}}]}}":                                            "spec.volumes[0].sysprep",
	"{spec: {volumes: [{name: a, cloudInitNoCloud: {userData: x, secretRef: {name: s}}}]}}":                                         "spec.volumes[0].cloudInitNoCloud",
	"{spec: {volumes: [{name: private, emptyDisk: {capacity: 1Gi}}]}}":                                                              "spec.volumes[0].name",
	"{spec: {utilityVolumes: [{name: u, claimName: A_b}]}}":                                                                         "spec.utilityVolumes[0].claimName",
	"{spec: {terminationGracePeriodSeconds: 9223372036854775760}}":                                                                  "spec.terminationGracePeriodSeconds",
	"{spec: {readinessProbe: {guestAgentPing: {}, initialDelaySeconds: -5}}}":                                                       "spec.readinessProbe.initialDelaySeconds",
	"{spec: {readinessProbe: {guestAgentPing: {}, timeoutSeconds: 2000000000}}}":                                                    "spec.readinessProbe.timeoutSeconds",
	"{spec: {schedulerName: A_b}}":                                                                                                  "spec.schedulerName",
	"{spec: {accessCredentials: [{userPassword: {source: {secret: {secretName: A_b}}, propagationMethod: {qemuGuestAgent: {}}}}]}}": "spec.accessCredentials[0].userPassword.source.secret.secretName",
}

// TestStructure_LooserThanSpec checks that VMIs stay valid for their readers that were created before a rule.
func TestStructure_LooserThanSpec(t *testing.T) {
	gates := validate.Gates{On: []string{validate.UtilityVolumes}}
	for guest, field := range onlyNew {
		vmi := parse(t, guest)
		if faults := validate.Structure(vmi); len(faults) > 0 {
			t.Errorf("%s: structural %+v", guest, faults)
		}
		faults := validate.Spec(vmi, validate.Config{FeatureGates: gates})
		if !slices.ContainsFunc(faults, func(f validate.Fault) bool { return f.Field == field }) {
			t.Errorf("%s: %+v, want one of %s", guest, faults, field)
		}
	}
}

// TestStructure_SubsetOfSpec checks that a reader has no rule that the webhook lacks.
func TestStructure_SubsetOfSpec(t *testing.T) {
	for name, r := range structureRows {
		vmi := parse(t, r.guest)
		all := validate.Spec(vmi, validate.Config{})
		for _, f := range validate.Structure(vmi) {
			if !slices.Contains(all, f) {
				t.Errorf("%s: %+v is structural only", name, f)
			}
		}
	}
}

func TestMetadata(t *testing.T) {
	for guest, field := range map[string]string{
		"{metadata: {name: a, namespace: b, uid: c, labels: {a/b: c}, annotations: {A/b: c}}}":       "",
		"{metadata: {name: A, namespace: b}}":                                                        "metadata.name",
		"{metadata: {name: a, namespace: a.b}}":                                                      "metadata.namespace",
		"{metadata: {name: a, namespace: b, labels: {a: b c}}}":                                      "metadata.labels[a]",
		"{metadata: {name: a, namespace: b, annotations: {a b: c}}}":                                 "metadata.annotations",
		"{metadata: {name: a, namespace: b, annotations: {kubevirt.io/libvirt-log-filters: '--x'}}}": "metadata.annotations[kubevirt.io/libvirt-log-filters]",
		"{metadata: {name: a, namespace: b, annotations: {sidecar.istio.io/inject: 'a b'}}}":         "metadata.annotations[sidecar.istio.io/inject]",
	} {
		var fields []string
		for _, f := range validate.Metadata(parse(t, guest)) {
			fields = append(fields, f.Field)
		}
		if strings.Join(fields, " ") != field {
			t.Errorf("%s: %q, want %q", guest, fields, field)
		}
	}
}
