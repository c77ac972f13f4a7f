// Package telemetry exports the metrics of the service to Prometheus, and its traces to
// an OpenTelemetry collector. The library and the service use OpenTelemetry's global
// providers, which this package sets.
package telemetry

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	exporter "go.opentelemetry.io/otel/exporters/prometheus"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
)

// Telemetry contains the providers of a process.
type Telemetry struct {
	// Metrics serves all metrics in the text format of Prometheus.
	Metrics http.Handler

	metrics *sdkmetric.MeterProvider
	traces  *sdktrace.TracerProvider // nil if no collector is configured
}

// Start sets the global providers. Call it before you create the parts that record
// metrics and traces.
//
// Traces are sent over HTTP to the collector that OTEL_EXPORTER_OTLP_ENDPOINT or
// OTEL_EXPORTER_OTLP_TRACES_ENDPOINT names. If neither of these two variables is set, no
// traces are recorded. The other variables of the OTLP exporter work, too. The name of
// the service is OTEL_SERVICE_NAME, and defaults to service.
func Start(ctx context.Context, service string, logger *slog.Logger) (*Telemetry, error) {
	about, err := resource.New(ctx,
		resource.WithAttributes(attribute.String("service.name", service)),
		resource.WithTelemetrySDK(),
		resource.WithFromEnv()) // the values of the last option take precedence
	if err != nil {
		return nil, fmt.Errorf("telemetry: OTEL_RESOURCE_ATTRIBUTES: %w", err)
	}
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) { logger.Error("Telemetry failed", "error", err) }))

	registry := prometheus.NewRegistry() // a collector can be registered only once in the global registry
	reader, err := exporter.New(exporter.WithRegisterer(registry), exporter.WithoutScopeInfo())
	if err != nil {
		return nil, fmt.Errorf("telemetry: %w", err)
	}
	t := &Telemetry{
		Metrics: promhttp.HandlerFor(registry, promhttp.HandlerOpts{}),
		metrics: sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader), sdkmetric.WithResource(about)),
	}
	otel.SetMeterProvider(t.metrics)

	if os.Getenv("OTEL_EXPORTER_OTLP_ENDPOINT") == "" && os.Getenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") == "" {
		return t, nil
	}
	collector, err := otlptracehttp.New(ctx)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("telemetry: %w", err), t.metrics.Shutdown(ctx))
	}
	t.traces = sdktrace.NewTracerProvider(sdktrace.WithBatcher(collector), sdktrace.WithResource(about))
	otel.SetTracerProvider(t.traces)
	return t, nil
}

// Close sends the remaining traces, and stops recording.
func (t *Telemetry) Close(ctx context.Context) error {
	errs := []error{t.metrics.Shutdown(ctx)}
	if t.traces != nil {
		errs = append(errs, t.traces.Shutdown(ctx))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("telemetry: stop: %w", err)
	}
	return nil
}
