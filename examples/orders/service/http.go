package service

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"time"

	"github.com/google/uuid"

	"github.com/watermill-once/once/outbox"
)

const (
	maxBody        = 64 << 10
	requestTimeout = 10 * time.Second
)

// Handler returns the service's HTTP interface.
func (s *Service) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /orders", s.postOrder)
	mux.HandleFunc("GET /orders/{id}", s.getOrder)
	mux.HandleFunc("GET /health/live", s.live)
	mux.HandleFunc("GET /health/ready", s.ready)
	return mux
}

// newServer bounds everything that a client could keep us waiting with.
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

	key := r.Header.Get("Idempotency-Key")
	if reason := keyProblem(key); reason != "" {
		problem{Status: http.StatusBadRequest, Detail: "Idempotency-Key " + reason}.write(w)
		return
	}
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

	a, err := s.place(ctx, idempotentRequest{key: key, digest: sha256.Sum256(body)}, wanted)
	if err != nil {
		s.placeProblem(r, err).write(w)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Location", a.Location)
	if a.Repeated {
		w.Header().Set("Idempotency-Replayed", "true")
	}
	w.WriteHeader(a.Status)
	_, _ = w.Write(a.Body) // a client that has gone asks again, with its key
}

// placeProblem is the answer when an order could not be placed.
func (s *Service) placeProblem(r *http.Request, err error) problem {
	switch {
	case errors.Is(err, errKeyReused):
		return problem{Status: http.StatusUnprocessableEntity, Detail: "the Idempotency-Key was used for another body"}
	case errors.Is(err, errKeyBusy):
		return problem{
			Status: http.StatusConflict, RetryAfter: time.Second,
			Detail: "a request with this Idempotency-Key is under way",
		}
	case errors.Is(err, outbox.ErrCommitUnknown):
		// It was placed, or it was not. The key knows.
		s.logger.Error("The outcome of a commit is unknown", "error", err)
		return problem{
			Status: http.StatusServiceUnavailable, RetryAfter: time.Second,
			Detail: "the order may have been placed: ask again with the same Idempotency-Key",
		}
	}
	s.log(r, "An order could not be placed", err)
	return unavailable
}

// log logs why a request failed; that the client has gone is nobody's fault.
func (s *Service) log(r *http.Request, what string, err error) {
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
		s.log(r, "An order could not be read", err)
		unavailable.write(w)
	default:
		writeJSON(w, http.StatusOK, "application/json", d)
	}
}

func writeJSON(w http.ResponseWriter, status int, contentType string, value any) {
	w.Header().Set("Content-Type", contentType)
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(value) // our own types encode; a client that has gone asks again
}
