package sequence

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"go.opentelemetry.io/otel/metric"

	"github.com/watermill-once/once/schema"
)

// Policy says what is compared.
type Policy int

const (
	// IgnoreOlder applies every version that is above the last one, and ignores
	// the others. It is right where a message has the whole state.
	IgnoreOlder Policy = iota

	// HoldForGap applies only the version that follows the last one. A higher one
	// is held until those before it have come, or Config.Window is over. It is
	// right where a message tells of a change.
	HoldForGap
)

// First says which version of an aggregate is its first. It is asked with
// HoldForGap, about aggregates of which nothing has been applied.
type First int

const (
	// AnyFirst takes the version that comes first for the first: a consumer
	// that is new may meet an aggregate in the middle of its life. If the first
	// two arrive the wrong way round, the lower one is stale.
	AnyFirst First = iota

	// FromOne and FromZero hold every other version for that one.
	FromOne
	FromZero
)

// AfterWindow says what becomes of a message that was held for the whole window
// and for which a version before it is still missing.
type AfterWindow int

const (
	// Apply handles it. The missing versions are stale if they come later.
	Apply AfterWindow = iota

	// Quarantine gives it up, as [ErrGap]. If it is replayed it is held once
	// more, and then applied.
	Quarantine
)

// Config is what a [Resequencer] can be told. Tx is required; apart from it the
// zero value is ready for use.
type Config struct {
	// Schema says which tables, in which kind of database. Defaults to
	// PostgreSQL and the prefix "once_".
	Schema schema.Config

	// Tx returns the transaction of the message that is being handled, as
	// dedup.TxFromContext does. It is required.
	Tx func(ctx context.Context) (*sql.Tx, bool)

	// Policy defaults to IgnoreOlder.
	Policy Policy

	// First defaults to AnyFirst. It is not used with IgnoreOlder.
	First First

	// Window is for how long a message is held for those before it, from when
	// it was first found to be early, by the database's clock. It should be
	// longer than most messages are retried, or a version whose handler fails
	// for a while is overtaken. Of several that are held the lowest goes first,
	// so that one whose own window is over may be held longer: for four windows
	// at most. Defaults to 2 minutes.
	Window time.Duration

	// AfterWindow defaults to Apply.
	AfterWindow AfterWindow

	// OnGap decides in the place of AfterWindow, in the transaction of the
	// message: it may fetch what is missing from elsewhere, and write it. An
	// error is an attempt of the message that failed. It may be called again
	// for the same gap if the transaction is rolled back. Defaults to nil.
	OnGap func(ctx context.Context, tx *sql.Tx, gap Gap) (AfterWindow, error)

	// Logger defaults to slog's default logger; watermill.NopLogger{} silences it.
	Logger watermill.LoggerAdapter

	// MeterProvider is where the instruments are made. Defaults to
	// OpenTelemetry's global one, which does nothing until another is set.
	MeterProvider metric.MeterProvider
}

func (c Config) withDefaults() Config {
	c.Schema = c.Schema.WithDefaults()
	c.Window = cmp.Or(c.Window, 2*time.Minute)
	if c.Logger == nil {
		c.Logger = watermill.NewSlogLogger(nil)
	}
	return c
}

func (c Config) validate() error {
	errs := []error{c.Schema.Validate()}
	if c.Tx == nil {
		errs = append(errs, errors.New("Tx is nil: give it dedup.TxFromContext"))
	}
	if c.Policy != IgnoreOlder && c.Policy != HoldForGap {
		errs = append(errs, fmt.Errorf("Policy is %d, neither IgnoreOlder nor HoldForGap", c.Policy))
	}
	if c.First < AnyFirst || c.First > FromZero {
		errs = append(errs, fmt.Errorf("First is %d, none of AnyFirst, FromOne, FromZero", c.First))
	}
	if c.Window < 100*time.Millisecond {
		errs = append(errs, fmt.Errorf("Window is %v: less than 100 ms", c.Window))
	}
	if c.AfterWindow != Apply && c.AfterWindow != Quarantine {
		errs = append(errs, fmt.Errorf("AfterWindow is %d, neither Apply nor Quarantine", c.AfterWindow))
	}
	if c.OnGap != nil && c.AfterWindow != Apply {
		errs = append(errs, errors.New("AfterWindow is set together with OnGap, which decides in its place"))
	}
	return errors.Join(errs...)
}
