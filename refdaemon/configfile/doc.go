// SPDX-License-Identifier: Apache-2.0

// Package configfile is the configuration of refdaemon's daemons: one YAML file
// with one versioned object, of kind [ControllerConfiguration] or
// [NodeConfiguration], and flags that go before it.
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
// What a field does not say has its default. The order is: defaults, the file,
// the flags that were given; [Source] reads in that order. Each field has a flag
// and each flag a field, see [Option]; the structs are what the daemons run with.
//
// # Strictness
//
// A field that is unknown or is there twice, a value of another type, another
// kind or version, a second document, and a value that cannot be are faults. All
// of them are told at once, each with file, line, field and remedy; see [Faults].
// An absent value (null) is the default. Times are strings such as 90s or 24h,
// and amounts of bytes are quantities of Kubernetes such as 500Mi.
//
// # Changes while a daemon runs
//
// [Watcher] looks at the file every few seconds, by its content, so that it
// does not matter how it is replaced: a ConfigMap that is mounted is swapped by
// a symbolic link. A file with faults is kept out: the configuration stays as it
// was, the faults are logged and metrics tell of them. Of a sound one, these
// fields take effect at once, without a restart:
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
// All others take effect when the daemon starts the next time; that they differ is
// logged, field by field, and counted in virtloom_config_restart_required. A
// field whose flag was given keeps the flag's value. Certificates are files of
// their own, which are read again when they change.
package configfile
