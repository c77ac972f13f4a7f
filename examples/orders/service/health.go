package service

import (
	"context"
	"net/http"
	"sync/atomic"
	"time"
)

// health says which parts of the service run. [Service.Run] maintains it.
type health struct {
	consumers atomic.Bool
	forwarder atomic.Bool
	stopping  atomic.Bool
}

// live reports that the process works. It does not check the database: restarting
// this process would not repair the database.
func (s *Service) live(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusOK, "application/json", map[string]string{"status": "ok"})
}

// ready reports whether this instance can take orders: it can reach the database,
// and its consumers and its forwarder run.
func (s *Service) ready(w http.ResponseWriter, r *http.Request) {
	ok, checks := s.checks(r.Context())
	status, summary := http.StatusOK, "ok"
	if !ok {
		status, summary = http.StatusServiceUnavailable, "unavailable"
	}
	writeJSON(w, status, "application/json", map[string]any{"status": summary, "checks": checks})
}

// checks returns the state of each part, and whether all of them are "ok".
func (s *Service) checks(ctx context.Context) (ok bool, checks map[string]string) {
	checks = map[string]string{
		"database":  s.databaseProblem(ctx),
		"consumers": notRunning(&s.health.consumers),
		"forwarder": notRunning(&s.health.forwarder),
	}
	if s.health.stopping.Load() {
		checks["service"] = "stopping"
	}
	ok = true
	for part, problem := range checks {
		if problem == "" {
			checks[part] = "ok"
			continue
		}
		ok = false
	}
	return ok, checks
}

func (s *Service) databaseProblem(ctx context.Context) string {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	if err := s.requests.PingContext(ctx); err != nil {
		s.logger.Error("Database cannot be reached", "error", err)
		return "cannot be reached"
	}
	return ""
}

func notRunning(running *atomic.Bool) string {
	if running.Load() {
		return ""
	}
	return "not running"
}
