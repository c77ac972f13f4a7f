package health

import (
	"encoding/json"
	"net/http"
)

// Values of the status in the body of a response.
const (
	statusOK          = "ok"
	statusDegraded    = "degraded"    // ready, but a check that is not needed has failed
	statusUnavailable = "unavailable" // not ready

	checkFailed = "failed"
)

// Handler serves GET /health/live and GET /health/ready. The body of a response is
// JSON. For each check, it contains only the name with "ok" or "failed", because an
// error may name hosts and users, and the endpoints have no login. [Health.Health]
// returns the errors.
func (h *Health) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /health/live", Live)
	mux.HandleFunc("GET /health/ready", h.Ready)
	return mux
}

// Live answers a liveness probe with 200 and {"status":"ok"}. It makes no checks,
// because a restart repairs neither the database nor the broker.
func Live(w http.ResponseWriter, _ *http.Request) {
	write(w, http.StatusOK, map[string]any{"status": statusOK})
}

// Ready answers a readiness probe with 200 if [Report.Ready] returns true, and with 503
// otherwise. The status in the body is "ok", "degraded" or "unavailable".
func (h *Health) Ready(w http.ResponseWriter, r *http.Request) {
	report := h.Health(r.Context())
	checks := make(map[string]string, len(report.Checks))
	code, status := http.StatusOK, statusOK
	for _, c := range report.Checks {
		checks[c.Name] = statusOK
		if c.Err != nil {
			checks[c.Name], status = checkFailed, statusDegraded
		}
	}
	if !report.Ready() {
		code, status = http.StatusServiceUnavailable, statusUnavailable
	}
	write(w, code, map[string]any{"status": status, "checks": checks})
}

func write(w http.ResponseWriter, code int, body map[string]any) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(body) // fails only if the client has closed the connection
}
