package health

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/watermill-once/once/internal/dialect"
	"github.com/watermill-once/once/internal/usercode"
	"github.com/watermill-once/once/schema"
)

// Pinger is a connection to a broker, such as a rabbit.Publisher or a rabbit.Subscriber.
type Pinger interface {
	// Ping waits until the broker can be used, or returns an error when ctx ends.
	Ping(ctx context.Context) error
}

// Config configures a [Health]. The zero value checks the database and the tables.
type Config struct {
	// Schema selects the database and the prefix of the tables. Defaults to PostgreSQL and "once_".
	Schema schema.Config

	// Running contains the parts that must run by name, with the channels that the method Running
	// of a router or a forwarder returns, which are closed when the part runs. Defaults to none.
	Running map[string]<-chan struct{}

	// Brokers contains the connections to brokers, by name. Defaults to none.
	Brokers map[string]Pinger

	// NeedsBroker makes the process unready while a broker cannot be reached. Set it in a process
	// that only forwards or consumes, so that a new version that cannot log in does not replace the
	// old one. Defaults to false: a service that publishes through the outbox needs no broker to
	// accept requests.
	NeedsBroker bool

	// MaxLag is the longest time that a message may wait in the outbox. Slots without a forwarder
	// are then also checked while messages wait, and the database login needs the rights of the
	// role forwarder or watcher. Defaults to 0: neither is checked.
	MaxLag time.Duration

	// Retention is the longest dedup.Config.Retention of the consumers. The check fails if the
	// inbox contains ids that are more than two days older, because no process deletes them. The
	// check "paused" then also fails while an operator or a breaker has paused a consumer; the process stays
	// ready. The database login needs the rights of the role consumer or watcher. Defaults to 0:
	// neither is checked.
	Retention time.Duration

	// Stopping makes the process unready when this channel is closed, such as Done of a context
	// that ends with a signal. Defaults to nil.
	Stopping <-chan struct{}

	// Timeout is the maximum time for all checks together. Set it below the timeout of the
	// orchestrator's probe. Defaults to 2 seconds.
	Timeout time.Duration
}

// Health runs the health checks of a process.
type Health struct {
	db      *sql.DB
	config  Config
	dialect dialect.Dialect
	sql     queries
}

// New returns a Health of the process that uses db, without connecting to it. If config is invalid,
// the error names each invalid field. Checks use one connection at a time, and fail without one in
// time.
func New(db *sql.DB, config Config) (*Health, error) {
	config.Schema = config.Schema.WithDefaults()
	if config.Timeout == 0 {
		config.Timeout = 2 * time.Second
	}
	errs := []error{config.Schema.Validate()}
	if db == nil {
		errs = append(errs, errors.New("db is nil"))
	}
	for _, field := range []struct {
		name  string
		value time.Duration
	}{{"MaxLag", config.MaxLag}, {"Retention", config.Retention}, {"Timeout", config.Timeout}} {
		if field.value < 0 {
			errs = append(errs, fmt.Errorf("%s is %v: it must not be negative", field.name, field.value))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(config.Running)) {
		if config.Running[name] == nil {
			errs = append(errs, fmt.Errorf("Running[%q] is nil: pass the channel that Running returns", name))
		}
		errs = append(errs, usable("Running", name))
	}
	for _, name := range slices.Sorted(maps.Keys(config.Brokers)) {
		if config.Brokers[name] == nil {
			errs = append(errs, fmt.Errorf("Brokers[%q] is nil: pass a publisher or a subscriber of package rabbit", name))
		}
		errs = append(errs, usable("Brokers", name))
		if _, twice := config.Running[name]; twice {
			errs = append(errs, fmt.Errorf("%q is in Running and in Brokers: each check needs its own name", name))
		}
	}
	if config.NeedsBroker && len(config.Brokers) == 0 {
		errs = append(errs, errors.New("NeedsBroker is set without Brokers: add the publisher or the subscriber"))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, usercode.Refused("health", err)
	}
	d, err := dialect.New(config.Schema)
	if err != nil {
		return nil, fmt.Errorf("health: %w", err)
	}
	return &Health{db: db, config: config, dialect: d, sql: newQueries(d)}, nil
}

func usable(field, name string) error {
	switch name {
	case "":
		return fmt.Errorf("%s has an empty name", field)
	case checkDatabase, checkTables, checkLag, checkSlots, checkRetention, checkPaused, checkService:
		return fmt.Errorf("%s has the name %q of another check: choose another one", field, name)
	}
	return nil
}

// Check is the result of one check.
type Check struct {
	// Name is "database", "tables", "lag", "slots", "retention", "paused", "service" (it fails while
	// the process is stopping), or a name in Config.Running or Config.Brokers.
	Name string

	// Err is nil, or names the problem, and says what to do. It may name hosts and users, but
	// contains no passwords.
	Err error

	// Needed means that the process is not ready if this check fails.
	Needed bool
}

// Report contains the results of all checks, sorted by name.
type Report struct{ Checks []Check }

// Ready reports whether the process can do its work, because no needed check has failed.
func (r Report) Ready() bool {
	return !slices.ContainsFunc(r.Checks, func(c Check) bool { return c.Needed && c.Err != nil })
}

// Err returns nil, or one error with a line for each failed check.
func (r Report) Err() error {
	var errs []error
	for _, c := range r.Checks {
		if c.Err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", c.Name, c.Err))
		}
	}
	return errors.Join(errs...)
}

func (r Report) sort() Report {
	slices.SortFunc(r.Checks, func(a, b Check) int { return strings.Compare(a.Name, b.Name) })
	return r
}

const (
	statusOK          = "ok"
	statusDegraded    = "degraded"    // ready, but a check that is not needed has failed
	statusUnavailable = "unavailable" // not ready

	checkFailed = "failed"
)

// Handler serves GET /health/live and GET /health/ready. The JSON response contains the name of
// each check and "ok" or "failed". It contains no error texts, because they may name hosts and
// users, and the endpoints need no login. [Health.Health] returns the errors.
func (h *Health) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /health/live", Live)
	mux.HandleFunc("GET /health/ready", h.Ready)
	return mux
}

// Live answers a liveness probe with 200 and {"status":"ok"}, without checks: a restart repairs
// neither the database nor the broker.
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
