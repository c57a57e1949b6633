// SPDX-License-Identifier: Apache-2.0

// Package tracing exports the spans of a daemon: to a file, to an OpenTelemetry collector by
// OTLP, or both. Without either nothing is recorded and nothing is written to objects.
//
// The start of a VMI, or a migration, is one trace across all daemons (see package
// internal/tracecontext). Sampling is decided by the trace's ID, alike in all daemons with the
// same share, whatever the sampling flag of an object says.
package tracing

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/exporters/stdout/stdouttrace"
	"go.opentelemetry.io/otel/sdk/resource"
	"go.opentelemetry.io/otel/sdk/trace"
)

// Options configure sampling and exporters.
type Options struct {
	// Service is the name of the daemon.
	Service string
	// File is the file to append spans to, as JSON; empty for none.
	File string
	// Endpoint is the URL of a collector that accepts OTLP over HTTP, such as
	// https://collector.monitoring:4318; empty for none. The path defaults to /v1/traces.
	Endpoint string
	// Share is the sampled fraction of all traces, above 0 and at most 1. Zero means 1.
	Share float64
}

// validate returns an error that names the invalid options.
func (o Options) validate() error {
	var errs []error
	if !(o.Share >= 0 && o.Share <= 1) {
		errs = append(errs, fmt.Errorf("tracing: the share of traces %v is not between 0 and 1", o.Share))
	}
	if o.Endpoint != "" {
		u, err := url.Parse(o.Endpoint)
		if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
			errs = append(errs, fmt.Errorf("tracing: the endpoint %q is not a URL such as https://collector:4318", o.Endpoint))
		}
	}
	return errors.Join(errs...)
}

// flushWithin bounds the time for which a terminating daemon waits for a collector.
const flushWithin = 5 * time.Second

// Start exports spans until the returned function is called, which flushes the last ones. It
// does nothing with neither file nor endpoint. An unreachable collector loses spans and has
// no other effect.
func Start(ctx context.Context, o Options) (stop func() error, err error) {
	if err := o.validate(); err != nil {
		return nil, err
	}
	if o.File == "" && o.Endpoint == "" {
		return func() error { return nil }, nil
	}
	share := o.Share
	if share == 0 {
		share = 1
	}
	options := []trace.TracerProviderOption{
		trace.WithSampler(sampler(share)),
		trace.WithResource(resource.NewSchemaless(attribute.String("service.name", o.Service))),
	}
	var file *os.File
	if o.File != "" {
		if file, err = os.OpenFile(o.File, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600); err != nil {
			return nil, fmt.Errorf("tracing: open the trace file: %w", err)
		}
		exporter, err := stdouttrace.New(stdouttrace.WithWriter(file))
		if err != nil {
			return nil, errors.Join(fmt.Errorf("tracing: export spans to a file: %w", err), file.Close())
		}
		options = append(options, trace.WithBatcher(exporter))
	}
	if o.Endpoint != "" {
		exporter, err := otlptracehttp.New(ctx, otlptracehttp.WithEndpointURL(withPath(o.Endpoint)))
		if err != nil {
			return nil, errors.Join(fmt.Errorf("tracing: export spans by OTLP: %w", err), closed(file))
		}
		options = append(options, trace.WithBatcher(exporter))
	}
	provider := trace.NewTracerProvider(options...)
	otel.SetTracerProvider(provider)
	return func() error {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), flushWithin)
		defer cancel()
		return errors.Join(provider.Shutdown(ctx), closed(file))
	}, nil
}

// withPath returns the endpoint with the default path of collectors, if it has none.
func withPath(endpoint string) string {
	u, err := url.Parse(endpoint)
	if err != nil || u.Path != "" && u.Path != "/" {
		return endpoint
	}
	u.Path = "/v1/traces"
	return u.String()
}

// sampler decides by the trace's ID, for a remote parent too: any client that may write the
// object may have written that one.
func sampler(share float64) trace.Sampler {
	ratio := trace.TraceIDRatioBased(share)
	return trace.ParentBased(ratio, trace.WithRemoteParentSampled(ratio))
}

func closed(f *os.File) error {
	if f == nil {
		return nil
	}
	return f.Close()
}
