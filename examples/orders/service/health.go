package service

import (
	"context"
	"net/http"
	"sync/atomic"
	"time"
)

// health is what Run knows about the parts. It ends when one of them does.
type health struct {
	consumers atomic.Bool
	forwarder atomic.Bool
	stopping  atomic.Bool
}

// live says that the process works. It asks nobody: a process that is started
// anew does not mend a database.
func (s *Service) live(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusOK, "application/json", map[string]string{"status": "ok"})
}

// ready says whether to send orders here: the database can be reached, and
// consumers and forwarder run.
func (s *Service) ready(w http.ResponseWriter, r *http.Request) {
	checks := map[string]string{
		"database":  s.databaseProblem(r.Context()),
		"consumers": notRunning(&s.health.consumers),
		"forwarder": notRunning(&s.health.forwarder),
	}
	if s.health.stopping.Load() {
		checks["service"] = "stopping"
	}
	status, summary := http.StatusOK, "ok"
	for part, trouble := range checks {
		if trouble == "" {
			checks[part] = "ok"
			continue
		}
		status, summary = http.StatusServiceUnavailable, "unavailable"
	}
	writeJSON(w, status, "application/json", map[string]any{"status": summary, "checks": checks})
}

func (s *Service) databaseProblem(ctx context.Context) string {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	if err := s.requests.PingContext(ctx); err != nil {
		s.logger.Error("The database cannot be reached", "error", err)
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
