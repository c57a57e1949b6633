// SPDX-License-Identifier: Apache-2.0

package configfile

import (
	"errors"
	"net"
	"net/url"
	"slices"
	"strconv"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Limits of requests to the API server, those of KubeVirt's controllers.
const (
	defaultQPS   = 200
	defaultBurst = 400
)

// Limits of events, which are for people: far lower than those of other requests.
const (
	defaultEventsQPS   = 10
	defaultEventsBurst = 50
)

// off is the address that disables serving.
const off = "0"

// Daemon is the common part of the configurations of all daemons.
type Daemon struct {
	// Client configures the access to the API server.
	Client Client `json:"client"`
	// Events limits the rate of events.
	Events Events `json:"events"`
	// Log configures the log.
	Log Log `json:"log"`
	// Metrics configures the metrics endpoint.
	Metrics Metrics `json:"metrics"`
	// Health configures the probe endpoint.
	Health Health `json:"health"`
	// Profiling configures the profiling endpoint.
	Profiling Profiling `json:"profiling"`
	// Tracing configures the export of spans.
	Tracing Tracing `json:"tracing"`
}

// Client configures a daemon's access to the API server.
type Client struct {
	// Kubeconfig is a file with the address of the cluster and the daemon's credentials. Defaults to the
	// environment variable KUBECONFIG, and without that to the service account of the daemon's Pod.
	// Takes effect at the next start.
	Kubeconfig string `json:"kubeconfig"`
	// QPS is the sustained number of requests per second. Default 200, as KubeVirt's.
	// Takes effect at the next start.
	QPS float64 `json:"qps"`
	// Burst is the number of requests at once. Default 400, as KubeVirt's.
	// Takes effect at the next start.
	Burst int `json:"burst"`
}

// Events limits the rate at which a daemon sends events to the API server. They have a rate of their own, so that no other
// request waits behind them.
type Events struct {
	// QPS is the sustained number of events per second. Default 10.
	// Takes effect at the next start.
	QPS float64 `json:"qps"`
	// Burst is the number of events at once. Default 50.
	// Takes effect at the next start.
	Burst int `json:"burst"`
}

// Log configures the log of a daemon.
type Log struct {
	// Verbosity is 0, the default, for the state of the process and problems, 1 for changes of state of objects, and more for details.
	// Takes effect at once.
	Verbosity int `json:"verbosity"`
}

// Metrics configures the metrics endpoint of a daemon.
type Metrics struct {
	// Address is HOST:PORT or :PORT; the default, 0, serves none.
	// Takes effect at the next start.
	Address string `json:"address"`
	// Secure serves them over TLS, and only to clients whose token the API server accepts (TokenReview)
	// and who may get the path /metrics (SubjectAccessReview); the roles in refdaemon/config/rbac allow
	// the daemons these reviews. Answers are cached for 30 seconds or more. Default false.
	// Takes effect at the next start.
	Secure bool `json:"secure"`
	// CertDir is a directory with tls.crt and tls.key, reloaded when they change. Defaults to a
	// self-signed certificate. Requires Secure.
	// Takes effect at the next start.
	CertDir string `json:"certDir"`
}

// Health configures the probe endpoint of a daemon.
type Health struct {
	// Address is HOST:PORT or :PORT for /healthz and /readyz; the default, 0, serves none.
	// Takes effect at the next start.
	Address string `json:"address"`
}

// Profiling configures the profiling endpoint of a daemon.
type Profiling struct {
	// Address is HOST:PORT or :PORT for /debug/pprof; the default, 0, serves none. It discloses the
	// daemon's memory: a loopback address is usual.
	// Takes effect at the next start.
	Address string `json:"address"`
}

// Tracing configures the export of a daemon's spans.
type Tracing struct {
	// File is the file to append OpenTelemetry spans to, one JSON object a line; empty, the default, records none.
	// Takes effect at the next start.
	File string `json:"file"`
	// Endpoint is the URL of a collector that accepts OTLP over HTTP, such as
	// https://collector.monitoring:4318; empty, the default, sends none. The path defaults to
	// /v1/traces. Takes effect at the next start.
	Endpoint string `json:"endpoint"`
	// Share is the fraction of all starts and migrations that is traced, above 0 and at most 1, the
	// default. It must be the same for all daemons. Takes effect at the next start.
	Share float64 `json:"share"`
}

func newDaemon() Daemon {
	return Daemon{
		Client:  Client{QPS: defaultQPS, Burst: defaultBurst},
		Events:  Events{QPS: defaultEventsQPS, Burst: defaultEventsBurst},
		Metrics: Metrics{Address: off}, Health: Health{Address: off}, Profiling: Profiling{Address: off},
		Tracing: Tracing{Share: 1},
	}
}

func (d *Daemon) options() []Option {
	return []Option{
		option("client.kubeconfig", "kubeconfig", "kubeconfig `file`; empty is that of the environment variable KUBECONFIG, else the service account of the Pod", textValue(&d.Client.Kubeconfig)),
		option("client.qps", "client-qps", "sustained `requests` to the API server per second", numberValue(&d.Client.QPS)),
		option("client.burst", "client-burst", "`requests` to the API server at once", integer(&d.Client.Burst)),
		option("events.qps", "events-qps", "sustained `events` sent per second", numberValue(&d.Events.QPS)),
		option("events.burst", "events-burst", "`events` sent at once", integer(&d.Events.Burst)),
		verboseOption(&d.Log.Verbosity),
		option("metrics.address", "metrics-address", "`address` to serve metrics at; 0 serves none", textValue(&d.Metrics.Address)),
		option("metrics.secure", "metrics-secure", "serve metrics over TLS, only to clients that the API server authorizes to get /metrics", boolean(&d.Metrics.Secure)),
		option("metrics.certDir", "metrics-cert-dir", "`directory` of tls.crt and tls.key for --metrics-secure, reloaded when they change; empty is a self-signed certificate", textValue(&d.Metrics.CertDir)),
		option("health.address", "health-address", "`address` to serve /healthz and /readyz at; 0 serves none", textValue(&d.Health.Address)),
		option("profiling.address", "profiling-address", "`address` to serve /debug/pprof at, which discloses memory; 0 serves none", textValue(&d.Profiling.Address)),
		option("tracing.file", "trace-file", "`file` to append OpenTelemetry spans to, as JSON; empty records none", textValue(&d.Tracing.File)),
		option("tracing.endpoint", "trace-endpoint", "`URL` of an OpenTelemetry collector that accepts OTLP over HTTP, such as https://collector.monitoring:4318; empty sends none", textValue(&d.Tracing.Endpoint)),
		option("tracing.share", "trace-share", "`fraction` of all starts and migrations to trace, above 0 and at most 1; must be the same for all daemons", numberValue(&d.Tracing.Share)),
	}
}

func verboseOption(to *int) Option {
	o := live("log.verbosity", "verbosity", "verbosity of the `log`: 0 is the state of the process and problems, 1 adds changes of state of objects, more adds details", verbosity(to))
	o.Short = "v"
	return o
}

// VerbosityFlag registers only the flag of [Log], for a command without a file.
func VerbosityFlag(fs *pflag.FlagSet, to *int) { Flags(fs, []Option{verboseOption(to)}, nil) }

func (d *Daemon) validate() field.ErrorList {
	var errs field.ErrorList
	for _, r := range []struct {
		section, what string
		qps           float64
		burst         int
	}{{"client", "request", d.Client.QPS, d.Client.Burst}, {"events", "event", d.Events.QPS, d.Events.Burst}} {
		if !(r.qps > 0) {
			errs = append(errs, field.Invalid(field.NewPath(r.section, "qps"), r.qps, "must be above 0, otherwise no "+r.what+" is sent"))
		}
		if r.burst < 1 {
			errs = append(errs, field.Invalid(field.NewPath(r.section, "burst"), r.burst, "must be 1 or more, otherwise no "+r.what+" is sent"))
		}
	}
	if d.Log.Verbosity < 0 {
		errs = append(errs, field.Invalid(field.NewPath("log", "verbosity"), d.Log.Verbosity, "must be 0 or more"))
	}
	for _, a := range []struct{ section, address string }{
		{"metrics", d.Metrics.Address}, {"health", d.Health.Address}, {"profiling", d.Profiling.Address},
	} {
		if _, _, err := HostPort(a.address); err != nil {
			errs = append(errs, notAnAddress(field.NewPath(a.section, "address"), a.address, err))
		}
	}
	if d.Metrics.Secure && !Serves(d.Metrics.Address) {
		errs = append(errs, field.Forbidden(field.NewPath("metrics", "secure"), "has no effect without metrics.address (--metrics-address)"))
	}
	if d.Metrics.CertDir != "" && !d.Metrics.Secure {
		errs = append(errs, field.Forbidden(field.NewPath("metrics", "certDir"), "has no effect without metrics.secure (--metrics-secure)"))
	}
	return append(errs, d.Tracing.validate()...)
}

func (t *Tracing) validate() field.ErrorList {
	var errs field.ErrorList
	if !(t.Share > 0 && t.Share <= 1) {
		errs = append(errs, field.Invalid(field.NewPath("tracing", "share"), t.Share, "must be a number above 0 and at most 1"))
	}
	if u, err := url.Parse(t.Endpoint); t.Endpoint != "" && (err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https") {
		errs = append(errs, field.Invalid(field.NewPath("tracing", "endpoint"), t.Endpoint, "must be a URL such as https://collector.monitoring:4318"))
	}
	return errs
}

// Serves reports whether an address enables serving.
func Serves(address string) bool { return address != "" && address != off }

// HostPort splits an address to serve at. An address that disables serving has
// port 0.
func HostPort(address string) (host string, port int, err error) {
	if !Serves(address) {
		return "", 0, nil
	}
	host, number, err := net.SplitHostPort(address)
	if err != nil {
		return "", 0, err
	}
	n, err := strconv.ParseUint(number, 10, 16)
	if err == nil && n == 0 {
		err = errors.New("port 0 is not a fixed port")
	}
	return host, int(n), err
}

func notAnAddress(at *field.Path, address string, err error) *field.Error {
	return field.Invalid(at, address, "is not an address: "+err.Error()+"; use HOST:PORT or :PORT")
}

// selectOptions returns the options whose flags are among the names.
func selectOptions(options []Option, flags ...string) []Option {
	return slices.DeleteFunc(options, func(o Option) bool { return !slices.Contains(flags, o.Flag) })
}
