package idempotency

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/watermill-once/once/internal/usercode"
	"github.com/watermill-once/once/schema"
)

// Config configures [Keys]. Client is required.
type Config struct {
	// Schema selects the database and the prefix of the tables. Defaults to PostgreSQL and "once_".
	Schema schema.Config

	// Client returns an id of the client that sends a request, such as that of the authenticated
	// user or tenant. Each client has its own keys: otherwise a client that guesses another's key
	// would get the other's answer. At most 1024 bytes of valid UTF-8 without zero bytes. Hosts are
	// not compared: if the answer depends on the host, make it a part of the id. Use OneClient for
	// a service with a single client.
	Client func(r *http.Request) string

	// Required makes the handler answer requests without a key with status 400. Defaults to false:
	// a repeated one takes effect again.
	Required bool

	// Documentation is the URL of a page that tells clients how to use keys, how long they are
	// kept, and which operations need one. An error response contains it as the type of the problem
	// and in its Link header. Defaults to no URL.
	Documentation string

	// Retention is how long an answer is kept, at least a minute. A request that is repeated later
	// takes effect again. Defaults to 24 hours.
	Retention time.Duration

	// SweepInterval is the time between two calls of Sweep by Run. Defaults to a minute.
	SweepInterval time.Duration

	// Wait is how long a request waits for another one with the same key, before it is answered
	// with status 409. Defaults to 5 seconds.
	Wait time.Duration

	// MaxBody is the maximum size of a request's body, in bytes, which is read into memory to
	// compare it. Larger requests are answered with status 413. Defaults to 1 MiB.
	MaxBody int64

	// MaxAnswer is the maximum size of an answer, in bytes. If a handler writes more, its
	// transaction is rolled back, and the answer is status 500. Defaults to 1 MiB.
	MaxAnswer int

	// Logger receives the errors of handlers and of the database. Defaults to slog's
	// default logger. Use watermill.NopLogger{} for silence.
	Logger watermill.LoggerAdapter
}

// OneClient is a value for Config.Client, for a service with a single client.
func OneClient(*http.Request) string { return "" }

const (
	defaultSize  = 1 << 20
	maxRetention = 10 * 365 * 24 * time.Hour
)

func (c Config) withDefaults() Config {
	c.Schema = c.Schema.WithDefaults()
	c.Retention = cmp.Or(c.Retention, 24*time.Hour)
	c.SweepInterval = cmp.Or(c.SweepInterval, time.Minute)
	c.Wait = cmp.Or(c.Wait, 5*time.Second)
	c.MaxBody = cmp.Or(c.MaxBody, defaultSize)
	c.MaxAnswer = cmp.Or(c.MaxAnswer, defaultSize)
	if c.Logger == nil {
		c.Logger = watermill.NewSlogLogger(nil)
	}
	return c
}

func documents(page string) bool {
	u, err := url.Parse(page)
	return page == "" || err == nil && (u.Scheme == "https" || u.Scheme == "http") && u.Host != "" && !strings.ContainsAny(page, "<> \"")
}

func (c Config) validate() error {
	errs := []error{c.Schema.Validate()}
	if c.Client == nil {
		errs = append(errs, errors.New("Client is nil: return the authenticated client of the request, or set OneClient"))
	}
	if !documents(c.Documentation) {
		errs = append(errs, fmt.Errorf("Documentation is %.300q: must be an absolute URL of HTTP", c.Documentation))
	}
	if c.Retention < time.Minute || c.Retention > maxRetention {
		errs = append(errs, fmt.Errorf("Retention is %v: must be from 1m to 10 years", c.Retention))
	}
	if c.SweepInterval < time.Millisecond {
		errs = append(errs, fmt.Errorf("SweepInterval is %v: less than 1 ms", c.SweepInterval))
	}
	if c.Wait < time.Millisecond {
		errs = append(errs, fmt.Errorf("Wait is %v: less than 1 ms", c.Wait))
	}
	if c.MaxBody < 0 || c.MaxAnswer < 0 {
		errs = append(errs, fmt.Errorf("MaxBody is %d and MaxAnswer is %d: must not be negative", c.MaxBody, c.MaxAnswer))
	}
	if err := errors.Join(errs...); err != nil {
		return usercode.Refused("idempotency", err)
	}
	return nil
}
