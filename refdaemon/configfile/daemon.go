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

// Limits of requests to the API server, as KubeVirt has them for its controllers.
const (
	DefaultQPS   = 200
	DefaultBurst = 400
)

// Limits of events, which are for people: far less than of other requests.
const (
	DefaultEventsQPS   = 10
	DefaultEventsBurst = 50
)

// off is an address at which nothing is served.
const off = "0"

// Daemon is what the configurations of all daemons have in common.
type Daemon struct {
	// Client is how the daemon reaches the API server.
	Client Client `json:"client"`
	// Events is how it tells events.
	Events Events `json:"events"`
	// Log is what it logs.
	Log Log `json:"log"`
	// Metrics is where its metrics are.
	Metrics Metrics `json:"metrics"`
	// Health is where it tells how it is.
	Health Health `json:"health"`
	// Profiling is where its profiles are.
	Profiling Profiling `json:"profiling"`
	// Tracing is where its spans go.
	Tracing Tracing `json:"tracing"`
}

// Client is how a daemon reaches the API server.
type Client struct {
	// Kubeconfig is a file with the address of the cluster and proof of who the daemon is. Defaults to
	// the environment's KUBECONFIG; without that the service account of the daemon's Pod is used.
	// Takes effect at the next start.
	Kubeconfig string `json:"kubeconfig"`
	// QPS is how many requests it may make per second in the long run. Default 200, as KubeVirt's.
	// Takes effect at the next start.
	QPS float64 `json:"qps"`
	// Burst is how many requests it may make at once. Default 400, as KubeVirt's.
	// Takes effect at the next start.
	Burst int `json:"burst"`
}

// Events is how a daemon tells the API server of events. They have a rate of their own, so that nobody waits behind
// what is only told.
type Events struct {
	// QPS is how many it tells per second in the long run. Default 10.
	// Takes effect at the next start.
	QPS float64 `json:"qps"`
	// Burst is how many it tells at once. Default 50.
	// Takes effect at the next start.
	Burst int `json:"burst"`
}

// Log is what a daemon logs.
type Log struct {
	// Verbosity is 0 for what happened, the default, and 1 and more for ever more of how.
	// Takes effect at once.
	Verbosity int `json:"verbosity"`
}

// Metrics is where a daemon's metrics are.
type Metrics struct {
	// Address is HOST:PORT or :PORT; the default, 0, serves none.
	// Takes effect at the next start.
	Address string `json:"address"`
	// Secure serves them over TLS, and to those only whose token the API server accepts (TokenReview)
	// and who may get the path /metrics (SubjectAccessReview), which the roles in
	// refdaemon/config/rbac let the daemons ask. Answers are kept, for 30 seconds and more. Default false.
	// Takes effect at the next start.
	Secure bool `json:"secure"`
	// CertDir is a folder with tls.crt and tls.key, read again when they change. Defaults to a
	// certificate that the daemon makes for itself. It needs Secure.
	// Takes effect at the next start.
	CertDir string `json:"certDir"`
}

// Health is where a daemon tells how it is.
type Health struct {
	// Address is HOST:PORT or :PORT for /healthz and /readyz; the default, 0, serves none.
	// Takes effect at the next start.
	Address string `json:"address"`
}

// Profiling is where a daemon's profiles are.
type Profiling struct {
	// Address is HOST:PORT or :PORT for /debug/pprof; the default, 0, serves none. Who reaches it
	// learns what is in the daemon's memory: a loopback address is usual.
	// Takes effect at the next start.
	Address string `json:"address"`
}

// Tracing is where a daemon's spans go.
type Tracing struct {
	// File is appended to, a span of OpenTelemetry a line, as JSON; empty, the default, records none.
	// Takes effect at the next start.
	File string `json:"file"`
	// Endpoint is the URL of a collector that takes OTLP over HTTP, such as
	// https://collector.monitoring:4318; empty, the default, sends none. A path that is given is the
	// whole path, else it is /v1/traces. Takes effect at the next start.
	Endpoint string `json:"endpoint"`
	// Share is which part of all starts and migrations is told of, above 0 and at most 1, the default.
	// Give all daemons the same. Takes effect at the next start.
	Share float64 `json:"share"`
}

func newDaemon() Daemon {
	return Daemon{
		Client:  Client{QPS: DefaultQPS, Burst: DefaultBurst},
		Events:  Events{QPS: DefaultEventsQPS, Burst: DefaultEventsBurst},
		Metrics: Metrics{Address: off}, Health: Health{Address: off}, Profiling: Profiling{Address: off},
		Tracing: Tracing{Share: 1},
	}
}

func (d *Daemon) options() []Option {
	return []Option{
		option("client.kubeconfig", "kubeconfig", "kubeconfig `file`; empty is that of the environment's KUBECONFIG, and without one the service account of the Pod", text(&d.Client.Kubeconfig)),
		option("client.qps", "client-qps", "`requests` to the API server per second, in the long run", number(&d.Client.QPS)),
		option("client.burst", "client-burst", "`requests` to the API server at once", integer(&d.Client.Burst)),
		option("events.qps", "events-qps", "`events` told per second, in the long run", number(&d.Events.QPS)),
		option("events.burst", "events-burst", "`events` told at once", integer(&d.Events.Burst)),
		verboseOption(&d.Log.Verbosity),
		option("metrics.address", "metrics-address", "`address` to serve metrics at; 0 serves none", text(&d.Metrics.Address)),
		option("metrics.secure", "metrics-secure", "serve metrics over TLS, to those only who may get /metrics by the API server's word", boolean(&d.Metrics.Secure)),
		option("metrics.certDir", "metrics-cert-dir", "`folder` of tls.crt and tls.key for --metrics-secure, read again when they change; empty makes a certificate", text(&d.Metrics.CertDir)),
		option("health.address", "health-address", "`address` to serve /healthz and /readyz at; 0 serves none", text(&d.Health.Address)),
		option("profiling.address", "profiling-address", "`address` to serve /debug/pprof at, which shows what is in memory; 0 serves none", text(&d.Profiling.Address)),
		option("tracing.file", "trace-file", "`file` to append OpenTelemetry spans to, as JSON; empty records none", text(&d.Tracing.File)),
		option("tracing.endpoint", "trace-endpoint", "`URL` of an OpenTelemetry collector that takes OTLP over HTTP, such as https://collector.monitoring:4318; empty sends none", text(&d.Tracing.Endpoint)),
		option("tracing.share", "trace-share", "`part` of all starts and migrations to tell of, above 0 and at most 1; give all daemons the same", number(&d.Tracing.Share)),
	}
}

func verboseOption(to *int) Option {
	o := live("log.verbosity", "verbosity", "how much to `log`: 0 is what happened, 1 and more ever more of how", verbosity(to))
	o.Short = "v"
	return o
}

// VerbosityFlag registers the flag of [Log] alone, for a command without a file.
func VerbosityFlag(fs *pflag.FlagSet, to *int) { Flags(fs, []Option{verboseOption(to)}, nil) }

func (d *Daemon) validate() field.ErrorList {
	var errs field.ErrorList
	for _, r := range []struct {
		section, what string
		qps           float64
		burst         int
	}{{"client", "request", d.Client.QPS, d.Client.Burst}, {"events", "event", d.Events.QPS, d.Events.Burst}} {
		if !(r.qps > 0) {
			errs = append(errs, field.Invalid(field.NewPath(r.section, "qps"), r.qps, "lets no "+r.what+" through; give a number above 0"))
		}
		if r.burst < 1 {
			errs = append(errs, field.Invalid(field.NewPath(r.section, "burst"), r.burst, "lets no "+r.what+" through; give 1 or more"))
		}
	}
	if d.Log.Verbosity < 0 {
		errs = append(errs, field.Invalid(field.NewPath("log", "verbosity"), d.Log.Verbosity, "is less than nothing; give 0 or more"))
	}
	for _, a := range []struct{ section, address string }{
		{"metrics", d.Metrics.Address}, {"health", d.Health.Address}, {"profiling", d.Profiling.Address},
	} {
		if _, _, err := HostPort(a.address); err != nil {
			errs = append(errs, notAnAddress(field.NewPath(a.section, "address"), a.address, err))
		}
	}
	if d.Metrics.Secure && !Serves(d.Metrics.Address) {
		errs = append(errs, field.Forbidden(field.NewPath("metrics", "secure"), "has no meaning without metrics.address (--metrics-address)"))
	}
	if d.Metrics.CertDir != "" && !d.Metrics.Secure {
		errs = append(errs, field.Forbidden(field.NewPath("metrics", "certDir"), "has no meaning without metrics.secure (--metrics-secure)"))
	}
	return append(errs, d.Tracing.validate()...)
}

func (t *Tracing) validate() field.ErrorList {
	var errs field.ErrorList
	if !(t.Share > 0 && t.Share <= 1) {
		errs = append(errs, field.Invalid(field.NewPath("tracing", "share"), t.Share, "is no part of all traces; give a number above 0 and at most 1"))
	}
	if u, err := url.Parse(t.Endpoint); t.Endpoint != "" && (err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https") {
		errs = append(errs, field.Invalid(field.NewPath("tracing", "endpoint"), t.Endpoint, "is not where a collector is; give a URL such as https://collector.monitoring:4318"))
	}
	return errs
}

// Serves tells whether something is to be served at an address.
func Serves(address string) bool { return address != "" && address != off }

// HostPort takes apart an address at which something is served. An address of
// nothing has port 0.
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
		err = errors.New("port 0 is not one that anybody could be told")
	}
	return host, int(n), err
}

func notAnAddress(at *field.Path, address string, err error) *field.Error {
	return field.Invalid(at, address, "is no address: "+err.Error()+"; use HOST:PORT or :PORT")
}

// only returns the options whose flags are among the names.
func only(options []Option, flags ...string) []Option {
	return slices.DeleteFunc(options, func(o Option) bool { return !slices.Contains(flags, o.Flag) })
}
