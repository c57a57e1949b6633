// SPDX-License-Identifier: Apache-2.0

package admit_test

import "strings"

// Strings that exceed the limit of inline data.
var (
	tooLong        = strings.Repeat("x", 2049)
	tooLongEncoded = strings.Repeat("QUJD", 700)
)

func disks(list string) string { return "{spec: {domain: {devices: {disks: [" + list + "]}}}}" }

func volumes(list string) string { return "{spec: {volumes: [" + list + "]}}" }

// both returns a VMI with disks and volumes.
func both(disks, volumes string) string {
	return "{spec: {volumes: [" + volumes + "], domain: {devices: {disks: [" + disks + "]}}}}"
}

func devices(list string) string { return "{spec: {domain: {devices: {" + list + "}}}}" }

// on returns a VMI of another architecture with devices.
func on(architecture, list string) string {
	return "{spec: {architecture: " + architecture + ", domain: {devices: {" + list + "}}}}"
}

const at = "spec.domain.devices."

var diskRows = map[string]row{
	"disk-names: good":            {guest: disks("{name: a}, {name: B_1}")},
	"disk-names: bad":             {guest: disks("{name: a}, {name: a}, {name: 'x y'}"), want: at + "disks[1].name " + at + "disks[2].name"},
	"disk-volumes: there":         {guest: both("{name: a}, {name: empty, cdrom: {}}", "{name: a, emptyDisk: {capacity: 1Gi}}")},
	"disk-volumes: not":           {guest: both("{name: a}, {name: b}, {name: c}", "{name: b, memoryDump: {claimName: x}}, {name: c, containerPath: {path: /x}}"), want: at + "disks[0].name " + at + "disks[1].name " + at + "disks[2].name"},
	"disk-kinds: one":             {guest: disks("{name: a}, {name: b, lun: {}}, {name: c, cdrom: {tray: open}}")},
	"disk-kinds: two":             {guest: disks("{name: a, disk: {}, cdrom: {tray: ajar}}"), want: at + "disks[0] " + at + "disks[0].cdrom.tray"},
	"disk-buses: known":           {guest: disks("{name: a, disk: {bus: virtio}}, {name: b, lun: {bus: scsi}}, {name: c, cdrom: {bus: sata}}")},
	"disk-buses: unknown":         {guest: disks("{name: a, disk: {bus: ide}}, {name: b, lun: {bus: sata}}, {name: c, cdrom: {bus: virtio}}"), want: at + "disks[0].disk.bus " + at + "disks[1].lun.bus " + at + "disks[2].cdrom.bus"},
	"disk-buses: metrics":         {guest: both("{name: m, disk: {bus: sata}}", "{name: m, downwardMetrics: {}}"), want: at + "disks[0].disk.bus"},
	"disk-buses: no USB":          {guest: on("s390x", "disks: [{name: a, disk: {bus: usb}}]"), want: at + "disks[0]"},
	"disk-addresses: virtio":      {guest: disks("{name: a, disk: {bus: virtio, pciAddress: '0000:81:01.0'}}")},
	"disk-addresses: by default":  {guest: on("arm64", "disks: [{name: a, disk: {pciAddress: '0000:81:01.0'}}]")},
	"disk-addresses: wrong":       {guest: disks("{name: a, disk: {pciAddress: '81.0'}}"), want: at + "disks[0].disk.pciAddress " + at + "disks[0].disk.pciAddress"},
	"disk-serials: good":          {guest: disks("{name: a, serial: CVLY623300}")},
	"disk-serials: bad":           {guest: disks("{name: a, serial: 'x y'}, {name: b, lun: {}, serial: x}"), want: at + "disks[0].serial " + at + "disks[1].serial"},
	"disk-drivers: good":          {guest: disks("{name: a, cache: none, io: native, shareable: true, errorPolicy: report}")},
	"disk-drivers: unknown":       {guest: disks("{name: a, cache: x, io: x, errorPolicy: x}"), want: at + "disks[0].cache " + at + "disks[0].io " + at + "disks[0].errorPolicy"},
	"disk-drivers: do not fit":    {guest: disks("{name: a, cache: writeback, io: native, shareable: true}"), want: at + "disks[0].cache " + at + "disks[0].io"},
	"block-sizes: custom":         {guest: disks("{name: a, blockSize: {custom: {logical: 512, physical: 4096, discardGranularity: 8192}}}, {name: b, blockSize: {matchVolume: {}}}")},
	"block-sizes: wrong":          {guest: disks("{name: a, blockSize: {custom: {logical: 4096, physical: 512, discardGranularity: 100}, matchVolume: {}}}"), want: at + "disks[0].blockSize " + at + "disks[0].blockSize.custom.physical " + at + "disks[0].blockSize.custom.discardGranularity"},
	"block-sizes: no power":       {guest: disks("{name: a, blockSize: {custom: {logical: 1000, physical: 5000}}}"), want: at + "disks[0].blockSize.custom.logical " + at + "disks[0].blockSize.custom.physical"},
	"block-sizes: large on s390x": {guest: on("s390x", "disks: [{name: a, blockSize: {custom: {logical: 512, physical: 8192}}}]"), want: at + "disks[0].blockSize.custom.physical"},
	"boot-orders: unique":         {guest: devices("disks: [{name: a, bootOrder: 1}, {name: b}], interfaces: [{name: nic, bootOrder: 2}]")},
	"boot-orders: twice, zero":    {guest: devices("disks: [{name: a, bootOrder: 1}, {name: b, bootOrder: 0}], interfaces: [{name: nic, bootOrder: 1}]"), want: at + "disks[1].bootOrder " + at + "interfaces[0].bootOrder"},
}

const cloud = "spec.volumes[0].cloudInitNoCloud"

var volumeRows = map[string]row{
	"volume-names: good":              {guest: volumes("{name: a}, {name: b-1}")},
	"volume-names: bad":               {guest: volumes("{name: a}, {name: a}, {name: A}, {name: private}"), want: "spec.volumes[1].name spec.volumes[2].name spec.volumes[3].name"},
	"volume-sources: one":             {guest: volumes("{name: a, containerDisk: {image: x}}")},
	"volume-sources: none, two":       {guest: volumes("{name: a}, {name: b, containerDisk: {image: x}, emptyDisk: {capacity: 1}}"), want: "spec.volumes[0] spec.volumes[1]"},
	"volume-references: good":         {guest: volumes("{name: a, persistentVolumeClaim: {claimName: c}}, {name: b, configMap: {name: x}}, {name: c, sysprep: {secret: {name: s}}}, {name: d, ephemeral: {persistentVolumeClaim: {claimName: c}}}")},
	"volume-references: empty":        {guest: volumes("{name: a, persistentVolumeClaim: {claimName: ''}}, {name: b, dataVolume: {name: ''}}, {name: c, memoryDump: {claimName: ''}}, {name: d, ephemeral: {}}"), want: "spec.volumes[0].persistentVolumeClaim.claimName spec.volumes[1].dataVolume.name spec.volumes[2].memoryDump.claimName spec.volumes[3].ephemeral.persistentVolumeClaim.claimName"},
	"volume-references: more empty":   {guest: volumes("{name: a, configMap: {}}, {name: b, secret: {}}, {name: c, serviceAccount: {}}, {name: d, sysprep: {}}, {name: e, sysprep: {configMap: {name: 'x y'}}}"), want: "spec.volumes[0].configMap.name spec.volumes[1].secret.secretName spec.volumes[2].serviceAccount.serviceAccountName spec.volumes[3].sysprep spec.volumes[4].sysprep.configMap.name"},
	"images: good":                    {guest: volumes("{name: a, containerDisk: {image: x, path: /disk/a.img}}")},
	"images: bad":                     {guest: volumes("{name: a, containerDisk: {image: ' x', path: ../a, imagePullPolicy: Often}}"), want: "spec.volumes[0].containerDisk.image spec.volumes[0].containerDisk.imagePullPolicy spec.volumes[0].containerDisk.path"},
	"empty-disks: size":               {guest: volumes("{name: a, emptyDisk: {capacity: 1Gi}}")},
	"empty-disks: none":               {guest: volumes("{name: a, emptyDisk: {capacity: 0}}"), want: "spec.volumes[0].emptyDisk.capacity"},
	"host-disks: gate":                {guest: volumes("{name: a, hostDisk: {path: /srv/a.img, type: DiskOrCreate, capacity: 1Gi}}"), kubevirt: gates("HostDisk")},
	"host-disks: no gate":             {guest: volumes("{name: a, hostDisk: {path: /srv/a.img, type: Disk}}"), want: "spec.volumes[0].hostDisk"},
	"host-disks: wrong":               {guest: volumes("{name: a, hostDisk: {path: /a, type: x}}, {name: b, hostDisk: {path: /srv/../b, type: DiskOrCreate}}"), kubevirt: gates("HostDisk"), want: "spec.volumes[0].hostDisk.path spec.volumes[0].hostDisk.type spec.volumes[1].hostDisk.path spec.volumes[1].hostDisk.capacity"},
	"cloud-init: data":                {guest: volumes("{name: a, cloudInitNoCloud: {userData: x, networkDataBase64: QUJD}}, {name: b, cloudInitConfigDrive: {secretRef: {name: s}}}")},
	"cloud-init: none":                {guest: volumes("{name: a, cloudInitNoCloud: {}}"), want: cloud},
	"cloud-init: two":                 {guest: volumes("{name: a, cloudInitNoCloud: {userData: x, secretRef: {name: ''}}}"), want: cloud + " " + cloud + ".secretRef.name"},
	"cloud-init: too long":            {guest: volumes("{name: a, cloudInitNoCloud: {userData: " + tooLong + ", networkDataBase64: " + tooLongEncoded + "}}"), want: cloud + ".userData " + cloud + ".networkDataBase64"},
	"cloud-init: no base64":           {guest: volumes("{name: a, cloudInitNoCloud: {userDataBase64: '!" + tooLong + "'}}"), want: cloud + ".userDataBase64"},
	"downward-api: good":              {guest: volumes("{name: a, downwardAPI: {fields: [{path: a/b, fieldRef: {fieldPath: metadata.name}}]}}")},
	"downward-api: bad":               {guest: volumes("{name: a, downwardAPI: {fields: [{path: ../b}, {path: x, fieldRef: {fieldPath: a}}, {path: x, fieldRef: {fieldPath: a}}]}}"), want: "spec.volumes[0].downwardAPI.fields[0].path spec.volumes[0].downwardAPI.fields[0] spec.volumes[0].downwardAPI.fields[2].path"},
	"common: metrics":                 {guest: volumes("{name: a, downwardMetrics: {}}"), kubevirt: gates("DownwardMetrics")},
	"common: metrics, gate off":       {guest: "{spec: {volumes: [{name: a, downwardMetrics: {}}], domain: {devices: {downwardMetrics: {}}}}}", want: "spec.volumes[0].downwardMetrics spec.domain.devices.downwardMetrics"},
	"container-paths: shared":         {guest: "{spec: {volumes: [{name: a, containerPath: {path: /x, readOnly: true}}], domain: {devices: {filesystems: [{name: a, virtiofs: {}}]}}}}", kubevirt: gates("ContainerPathVolumes")},
	"container-paths: wrong":          {guest: volumes("{name: a, containerPath: {path: x, readOnly: false}}"), want: "spec.volumes[0].containerPath spec.volumes[0].containerPath.path spec.volumes[0].containerPath.readOnly spec.volumes[0].containerPath"},
	"single-volumes: one of each":     {guest: volumes("{name: a, downwardMetrics: {}}, {name: b, serviceAccount: {serviceAccountName: x}}, {name: c, memoryDump: {claimName: x}}")},
	"single-volumes: two":             {guest: volumes("{name: a, downwardMetrics: {}}, {name: b, downwardMetrics: {}}, {name: c, serviceAccount: {}}, {name: d, serviceAccount: {}}, {name: e, memoryDump: {claimName: x}}, {name: f, memoryDump: {claimName: x}}"), want: "spec.volumes[1] spec.volumes[3] spec.volumes[5]"},
	"utility-volumes: on":             {guest: "{spec: {utilityVolumes: [{name: u, claimName: c, type: MemoryDump}]}}", kubevirt: gates("UtilityVolumes")},
	"utility-volumes: wrong":          {guest: "{spec: {volumes: [{name: u}], utilityVolumes: [{name: u, claimName: '', type: x}, {name: X, claimName: c}]}}", kubevirt: gates("UtilityVolumes"), want: "spec.utilityVolumes[0].name spec.utilityVolumes[0].claimName spec.utilityVolumes[0].type spec.utilityVolumes[1].name"},
	"utility-volumes: off":            {guest: "{spec: {utilityVolumes: [{name: u, claimName: c}]}}", want: "spec.utilityVolumes[0]"},
	"filesystems: shared":             {guest: "{spec: {volumes: [{name: a, configMap: {name: x}}], domain: {devices: {filesystems: [{name: a, virtiofs: {}}]}}}}"},
	"filesystems: claim, gate on":     {guest: "{spec: {volumes: [{name: a, dataVolume: {name: x}}], domain: {devices: {filesystems: [{name: a, virtiofs: {}}]}}}}", kubevirt: gates("EnableVirtioFsStorageVolumes")},
	"filesystems: claim, gate off":    {guest: "{spec: {volumes: [{name: a, dataVolume: {name: x}}], domain: {devices: {filesystems: [{name: a, virtiofs: {}}]}}}}", want: at + "filesystems[0].name"},
	"filesystems: no kind, twice":     {guest: "{spec: {volumes: [{name: a, configMap: {name: x}}], domain: {devices: {disks: [{name: a}], filesystems: [{name: a, virtiofs: null}, {name: a, virtiofs: {}}]}}}}", want: at + "filesystems[0].virtiofs " + at + "filesystems[0].name " + at + "filesystems[1].name " + at + "filesystems[1].name"},
	"filesystems: nothing to share":   {guest: "{spec: {volumes: [{name: a, emptyDisk: {capacity: 1}}, {name: p, persistentVolumeClaim: {claimName: c, hotpluggable: true}}], domain: {devices: {filesystems: [{name: a, virtiofs: {}}, {name: b, virtiofs: {}}, {name: p, virtiofs: {}}]}}}}", kubevirt: gates("EnableVirtioFsStorageVolumes"), want: at + "filesystems[0].name " + at + "filesystems[1].name " + at + "filesystems[2].name"},
	"filesystems: name for the guest": {guest: devices("filesystems: [{name: a23456789012345678901234567890123456789, virtiofs: {}}]"), want: at + "filesystems[0].name " + at + "filesystems[0].name"},
}

var deviceRows = map[string]row{
	"passed-through: good":         {guest: "{spec: {resourceClaims: [{name: c, resourceClaimName: x}], domain: {devices: {gpus: [{name: g, deviceName: nvidia.com/a}, {name: d, claimName: c, requestName: r}]}}}}"},
	"passed-through: bad":          {guest: devices("gpus: [{name: g}, {name: g, deviceName: 'a b'}], hostDevices: [{name: 'x y', claimName: c}]"), want: at + "gpus[0] " + at + "gpus[1].name " + at + "gpus[1].deviceName " + at + "hostDevices[0].name " + at + "hostDevices[0].requestName " + at + "hostDevices[0].claimName"},
	"passed-through: gate off":     {guest: "{spec: {resourceClaims: [{name: c, resourceClaimName: x}], domain: {devices: {gpus: [{name: d, claimName: c, requestName: r}]}}}}", kubevirt: "developerConfiguration: {disabledFeatureGates: [GPUsWithDRA]}", want: at + "gpus[0].claimName"},
	"permitted-devices: no list":   {guest: devices("gpus: [{name: g, deviceName: nvidia.com/a}]")},
	"permitted-devices: listed":    {guest: devices("gpus: [{name: g, deviceName: nvidia.com/a}], hostDevices: [{name: u, deviceName: kubevirt.io/u}, {name: m, deviceName: m.io/m}]"), kubevirt: "permittedHostDevices: {pciHostDevices: [{pciVendorSelector: x, resourceName: nvidia.com/a}], usb: [{resourceName: kubevirt.io/u}], mediatedDevices: [{mdevNameSelector: x, resourceName: m.io/m}]}"},
	"permitted-devices: not":       {guest: devices("hostDevices: [{name: g, deviceName: nvidia.com/a}]"), kubevirt: "permittedHostDevices: {}", want: at + "hostDevices[0].deviceName"},
	"resource-claims: good":        {guest: "{spec: {resourceClaims: [{name: c, resourceClaimName: x}]}}"},
	"resource-claims: bad":         {guest: "{spec: {resourceClaims: [{name: c}, {name: c, resourceClaimName: x, resourceClaimTemplateName: z}, {name: X, resourceClaimName: x}]}}", want: "spec.resourceClaims[0] spec.resourceClaims[1].name spec.resourceClaims[1] spec.resourceClaims[2].name"},
	"inputs: tablet":               {guest: devices("inputs: [{name: t, type: tablet, bus: virtio}, {name: u, type: ''}]")},
	"inputs: wrong":                {guest: devices("inputs: [{name: t, type: keyboard, bus: ps2}, {name: t, type: tablet}, {name: '', type: tablet}]"), want: at + "inputs[0].type " + at + "inputs[0].bus " + at + "inputs[1].name " + at + "inputs[2].name"},
	"inputs: no USB":               {guest: on("s390x", "inputs: [{name: t, type: tablet}]"), want: at + "inputs[0].bus"},
	"watchdog: good":               {guest: devices("watchdog: {name: w, i6300esb: {action: poweroff}}")},
	"watchdog: s390x":              {guest: on("s390x", "watchdog: {name: w, diag288: {}}")},
	"watchdog: action":             {guest: devices("watchdog: {name: w, i6300esb: {action: x}, diag288: {action: x}}"), want: at + "watchdog.i6300esb.action " + at + "watchdog.diag288.action " + at + "watchdog.diag288"},
	"watchdog: other":              {guest: on("s390x", "watchdog: {name: w, i6300esb: {}}"), want: at + "watchdog.i6300esb"},
	"watchdog: arm64":              {guest: on("arm64", "watchdog: {name: w}"), want: at + "watchdog"},
	"panic-devices: good":          {guest: devices("panicDevices: [{model: hyperv}, {}]")},
	"panic-devices: bad":           {guest: on("arm64", "panicDevices: [{model: isa}]"), want: at + "panicDevices[0].model"},
	"panic-devices: none":          {guest: on("s390x", "panicDevices: [{model: isa}]"), want: at + "panicDevices[0].model"},
	"video: good":                  {guest: devices("video: {type: bochs}")},
	"video: bad":                   {guest: on("arm64", "autoattachGraphicsDevice: false, video: {type: vga}"), want: at + "video " + at + "video.type"},
	"sound: good":                  {guest: devices("sound: {name: s, model: ac97}")},
	"sound: bad":                   {guest: devices("sound: {name: '', model: sb16}"), want: at + "sound.name " + at + "sound.model"},
	"tpm: good":                    {guest: devices("tpm: {persistent: true}")},
	"tpm: s390x":                   {guest: on("s390x", "tpm: {}"), want: at + "tpm"},
	"usb: good":                    {guest: devices("clientPassthrough: {}")},
	"usb: s390x":                   {guest: on("s390x", "clientPassthrough: {}"), want: at + "clientPassthrough"},
	"common: vsock":                {guest: devices("autoattachVSOCK: true"), kubevirt: gates("VSOCK")},
	"common: vsock, gate off":      {guest: devices("autoattachVSOCK: true"), want: at + "autoattachVSOCK"},
	"access-credentials: agent":    {guest: "{spec: {accessCredentials: [{sshPublicKey: {source: {secret: {secretName: s}}, propagationMethod: {qemuGuestAgent: {users: [me]}}}}, {userPassword: {source: {secret: {secretName: s}}, propagationMethod: {qemuGuestAgent: {}}}}]}}"},
	"access-credentials: nowhere":  {guest: "{spec: {accessCredentials: [{}, {sshPublicKey: {source: {}, propagationMethod: {noCloud: {}}}}, {userPassword: {source: {secret: {secretName: ''}}, propagationMethod: {}}}]}}", want: "spec.accessCredentials[0] spec.accessCredentials[1].sshPublicKey.source.secret spec.accessCredentials[1].sshPublicKey.propagationMethod.noCloud spec.accessCredentials[2].userPassword.source.secret.secretName spec.accessCredentials[2].userPassword.propagationMethod"},
	"access-credentials: for whom": {guest: "{spec: {accessCredentials: [{sshPublicKey: {source: {secret: {secretName: s}}, propagationMethod: {qemuGuestAgent: {users: []}}}}]}}", want: "spec.accessCredentials[0].sshPublicKey.propagationMethod.qemuGuestAgent.users"},
}
