package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	exporter "go.opentelemetry.io/otel/exporters/prometheus"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
)

// metrics collects the metrics of the process.
type metrics struct {
	handler  http.Handler // serves the metrics in the text format of Prometheus
	provider *sdkmetric.MeterProvider
}

func newMetrics() (*metrics, error) {
	registry := prometheus.NewRegistry() // the global registry accepts each metric only once
	reader, err := exporter.New(exporter.WithRegisterer(registry), exporter.WithoutScopeInfo())
	if err != nil {
		return nil, fmt.Errorf("metrics: %w", err)
	}
	return &metrics{
		handler:  promhttp.HandlerFor(registry, promhttp.HandlerOpts{}),
		provider: sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader)),
	}, nil
}

func (m *metrics) close() error { return m.provider.Shutdown(context.Background()) }

// web serves HTTP: the endpoints for health and metrics, or the console.
type web struct {
	server   *http.Server
	listener net.Listener
}

func newWeb(listener net.Listener, metrics, health http.Handler) *web {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", metrics)
	mux.Handle("/health/", health)
	return &web{server: &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second}, listener: listener}
}

// Run serves requests until Close is called.
func (w *web) Run(context.Context) error {
	if err := w.server.Serve(w.listener); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve HTTP: %w", err)
	}
	return nil
}

// Close ends Run. If Run is called later, it returns immediately.
func (w *web) Close() error { return w.server.Close() }
