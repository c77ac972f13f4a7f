package health

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/watermill-once/once/internal/dialect"
	"github.com/watermill-once/once/internal/fields"
	"github.com/watermill-once/once/schema"
)

// Pinger is a connection to a broker, such as rabbit.Publisher and rabbit.Subscriber.
type Pinger interface {
	// Ping waits until the broker can be used, and returns nil. It returns an error
	// at the latest when ctx ends.
	Ping(ctx context.Context) error
}

// Config configures a [Health]. The zero value checks the database and the tables.
type Config struct {
	// Schema selects the kind of database and the prefix of the tables. Defaults to
	// PostgreSQL and "once_".
	Schema schema.Config

	// Running are the parts that must run, by name: the channels Running of a router
	// and of a forwarder, which are closed when they run. Defaults to none.
	Running map[string]<-chan struct{}

	// Brokers are the connections to brokers, by name. Defaults to none.
	Brokers map[string]Pinger

	// NeedsBroker makes the process unready while a broker cannot be reached. Set it
	// in a process that only forwards or consumes, so that a new version that cannot
	// log in to the broker does not replace the old one. Defaults to false: a
	// service that publishes through the outbox needs no broker to take requests.
	NeedsBroker bool

	// MaxLag is the longest time that a message may wait in the outbox. With it,
	// slots without a forwarder are also checked, if messages wait. The login needs
	// the rights of the role forwarder or watcher. Defaults to 0: neither is checked.
	MaxLag time.Duration

	// Retention is the longest dedup.Config.Retention of the consumers. An inbox with
	// ids that are two days older is not swept. The login needs the rights of the
	// role consumer or watcher. Defaults to 0: retention is not checked.
	Retention time.Duration

	// Stopping makes the process unready when it is closed, such as the Done of the
	// context that ends with a signal. Defaults to nil: never.
	Stopping <-chan struct{}

	// Timeout is how long all checks together may take. Set it below the timeout of
	// the orchestrator's probe. Defaults to 2 seconds.
	Timeout time.Duration
}

// Health checks a process.
type Health struct {
	db      *sql.DB
	config  Config
	dialect dialect.Dialect
	sql     queries
}

// New returns a Health of the process that uses db, or an error that names each field
// of config that cannot be used. It does not connect to db. Checks take one connection
// of db at a time; a check that gets none in time fails.
func New(db *sql.DB, config Config) (*Health, error) {
	config.Schema = config.Schema.WithDefaults()
	if config.Timeout == 0 {
		config.Timeout = 2 * time.Second
	}
	errs := []error{config.Schema.Validate()}
	if db == nil {
		errs = append(errs, errors.New("db is nil"))
	}
	for name, value := range map[string]time.Duration{"MaxLag": config.MaxLag, "Retention": config.Retention, "Timeout": config.Timeout} {
		if value < 0 {
			errs = append(errs, fmt.Errorf("%s is %v: it must not be negative", name, value))
		}
	}
	for name, running := range config.Running {
		if running == nil {
			errs = append(errs, fmt.Errorf("Running[%q] is nil: pass the channel that Running returns", name))
		}
		errs = append(errs, usable("Running", name))
	}
	for name, broker := range config.Brokers {
		if broker == nil {
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
		return nil, fields.Refused("health", err)
	}
	d, err := dialect.New(config.Schema)
	if err != nil {
		return nil, fmt.Errorf("health: %w", err)
	}
	return &Health{db: db, config: config, dialect: d, sql: newQueries(d)}, nil
}

// usable returns an error for a name that is empty or that of another check.
func usable(field, name string) error {
	switch name {
	case "":
		return fmt.Errorf("%s has an empty name", field)
	case checkDatabase, checkTables, checkLag, checkSlots, checkRetention, checkService:
		return fmt.Errorf("%s has the name %q of another check: choose another one", field, name)
	}
	return nil
}

// Check is the result of one check.
type Check struct {
	// Name is "database", "tables", "lag", "slots", "retention", "service" (it is
	// stopping), or a name of Config.Running and Config.Brokers.
	Name string

	// Err is nil if all is well. Otherwise it says what is wrong and what to do. It
	// may name hosts and users, but has no passwords.
	Err error

	// Needed reports whether the process is not ready without it.
	Needed bool
}

// Report has the results of all checks, sorted by name.
type Report struct{ Checks []Check }

// Ready reports whether the process can do its work: all checks that it needs are well.
func (r Report) Ready() bool {
	return !slices.ContainsFunc(r.Checks, func(c Check) bool { return c.Needed && c.Err != nil })
}

// Err returns nil if every check is well, and otherwise one error with a line for each
// check that is not.
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
