package service

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"time"

	"github.com/google/uuid"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
)

const (
	maxBody        = 64 << 10
	requestTimeout = 10 * time.Second

	tracerName = "orders/service"
)

// Handler returns the service's HTTP interface. It has the paths for orders only if the
// service [Orders] runs in this process.
func (s *Service) Handler() http.Handler {
	mux := http.NewServeMux()
	if slices.Contains(s.services, Orders) {
		mux.HandleFunc("GET /{$}", s.getPage)
		mux.HandleFunc("POST /orders", s.postOrder)
		mux.HandleFunc("GET /orders/{id}", s.getOrder)
	}
	mux.Handle("/health/", s.health.Handler())
	mux.Handle("GET /metrics", s.metrics)
	mux.Handle("/console/", s.console)
	return mux
}

// newServer returns a server that has a time limit for everything that a client can
// delay.
func newServer(handler http.Handler) *http.Server {
	return &http.Server{
		Handler:           handler,
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       requestTimeout,
		WriteTimeout:      2 * requestTimeout,
		IdleTimeout:       time.Minute,
		MaxHeaderBytes:    16 << 10,
	}
}

func (s *Service) postOrder(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), requestTimeout)
	defer cancel()
	// The outbox stores the trace together with the events, so the consumers' spans
	// belong to the trace of the request.
	ctx, span := otel.Tracer(tracerName).Start(propagation.TraceContext{}.Extract(ctx, propagation.HeaderCarrier(r.Header)),
		"POST /orders", trace.WithSpanKind(trace.SpanKindServer))
	defer span.End()

	body, bad := readJSON(w, r)
	if bad != nil {
		bad.write(w)
		return
	}
	var wanted NewOrder
	if bad := decodeJSON(body, &wanted); bad != nil {
		bad.write(w)
		return
	}
	if errs := wanted.validate(); len(errs) > 0 {
		problem{Status: http.StatusUnprocessableEntity, Detail: "the order is not valid", Errors: errs}.write(w)
		return
	}

	// An order that is not valid uses up no key, so the client can correct it.
	r = r.WithContext(ctx)
	r.Body = io.NopCloser(bytes.NewReader(body))
	s.keys.Handler(s.place(wanted)).ServeHTTP(w, r)
	s.forwarder.Hint() // the events are committed
}

// logFailure logs why a request failed. If the client has closed the connection, the
// level is info.
func (s *Service) logFailure(r *http.Request, what string, err error) {
	level := slog.LevelError
	if r.Context().Err() != nil {
		level = slog.LevelInfo
	}
	s.logger.Log(r.Context(), level, what, "error", err)
}

func (s *Service) getOrder(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), requestTimeout)
	defer cancel()
	id, err := uuid.Parse(r.PathValue("id"))
	if err != nil {
		noSuchOrder.write(w)
		return
	}
	d, err := s.details(ctx, id.String())
	switch {
	case errors.Is(err, sql.ErrNoRows):
		noSuchOrder.write(w)
	case err != nil:
		s.logFailure(r, "Reading an order failed", err)
		unavailable.write(w)
	default:
		writeJSON(w, http.StatusOK, "application/json", d)
	}
}

func writeJSON(w http.ResponseWriter, status int, contentType string, value any) {
	w.Header().Set("Content-Type", contentType)
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(value) // fails only if the client has closed the connection, because our types can be encoded
}
