// SPDX-License-Identifier: Apache-2.0

// Package configfile is the configuration of refdaemon's daemons: one YAML file
// with one versioned object, of kind [ControllerConfiguration] or
// [NodeConfiguration], and flags that override it.
//
//	apiVersion: config.virtloom.dev/v1alpha1
//	kind: ControllerConfiguration
//	metrics:
//	  address: ":8443"
//	  secure: true
//	migrations:
//	  inboundPerNode: 4
//	  namespaceWeights: {shop: 3}
//
// Absent fields have their defaults. The order of precedence is: defaults, the file,
// the flags; [Source] applies them in that order. Each field has a flag and each flag
// a field, see [Option].
//
// # Strictness
//
// An unknown or duplicate field, a value of another type, another kind or version,
// a second document, and an invalid value are faults. All of them are reported at
// once, each with file, line, field and remedy; see [Faults].
// An absent value (null) is the default. Times are strings such as 90s or 24h,
// and amounts of bytes are quantities of Kubernetes such as 500Mi.
//
// # Changes while a daemon runs
//
// [Watcher] polls the content of the file every few seconds, so any way to replace
// it works: a mounted ConfigMap is swapped by a symbolic link. An invalid file is
// rejected: the configuration stays as it was, the faults are logged and visible in
// metrics. Of a valid one, these fields take effect at once, without a restart:
//
//	log.verbosity
//	migrations.inboundPerNode
//	migrations.lent
//	migrations.bandwidthPerNode
//	migrations.ageAfter
//	migrations.unfair
//	migrations.namespaceWeights
//	migrations.pendingTimeout
//	migrations.awaitNodes
//	migrations.cooldown
//
// All others take effect at the next start of the daemon; their differences are
// logged, field by field, and counted in virtloom_config_restart_required. A field
// whose flag was given keeps the flag's value. Certificates are separate files,
// which are reloaded when they change.
package configfile
