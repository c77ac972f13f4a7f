package health

import (
	"encoding/json"
	"net/http"
)

// The states of a process in a response.
const (
	statusOK          = "ok"
	statusDegraded    = "degraded"    // ready, but a check that it does not need has failed
	statusUnavailable = "unavailable" // not ready

	checkFailed = "failed"
)

// Handler serves GET /health/live and GET /health/ready. The body of a response is
// JSON. It names the checks and says "ok" or "failed", and no more: an error may name
// hosts and users, and the endpoints have no login. [Health.Health] returns the errors.
func (h *Health) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /health/live", Live)
	mux.HandleFunc("GET /health/ready", h.Ready)
	return mux
}

// Live answers a probe of liveness: 200 and {"status":"ok"}. It checks nothing but that
// the process answers, because a restart repairs neither database nor broker.
func Live(w http.ResponseWriter, _ *http.Request) {
	write(w, http.StatusOK, map[string]any{"status": statusOK})
}

// Ready answers a probe of readiness: 200 if [Report.Ready], else 503. The status in the
// body is "ok", "degraded" or "unavailable".
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
