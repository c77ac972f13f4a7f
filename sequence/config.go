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

	"github.com/watermill-once/once/internal/defaults"
	"github.com/watermill-once/once/schema"
)

// Policy says what is compared.
type Policy int

const (
	// IgnoreOlder applies a version that is above the last one, and acks every
	// other without calling the handler. Messages that are handled at the same
	// time, or tried again after a failure, pass each other: the version that was
	// passed is not applied. It is right only where each message has the whole
	// state of its aggregate, so that the newest is enough. There must be one
	// message for each version: a second one with the same version is ignored.
	IgnoreOlder Policy = iota

	// HoldForGap applies only the version that follows the last one. A higher one
	// is held until those before it have come, or Config.Window is over. It is
	// right where a message tells of a change.
	//
	// It ignores only versions that it has applied. One that comes after a higher
	// one was applied without it goes to quarantine, as [ErrGap]. If it is
	// replayed it is applied then, out of order. As with IgnoreOlder there must be
	// one message for each version.
	HoldForGap
)

// First is the version that every aggregate begins with. It is used with
// HoldForGap.
type First int

const (
	// FromOne and FromZero hold a version of an aggregate of which nothing has
	// been applied, until version 1, or 0, has come or Config.Window is over. A
	// lower version is [ErrInvalidVersion].
	FromOne First = iota
	FromZero
)

// AfterWindow says what becomes of a message that was held for the whole window
// and for which a version before it is still missing.
type AfterWindow int

const (
	// Quarantine gives it up, as [ErrGap]. If it is replayed it is held once
	// more, and then applied.
	Quarantine AfterWindow = iota

	// Apply handles it. A missing version that comes later goes to quarantine, as
	// [ErrGap]. If OnGap returns Apply, it is ignored when it comes: OnGap has
	// dealt with it.
	Apply
)

// DefaultWindow is the default of Config.Window. It is longer than the default
// policy of retry tries a message.
const DefaultWindow = 15 * time.Minute

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

	// First defaults to FromOne. It is not used with IgnoreOlder.
	First First

	// Window is for how long a message is held for those before it, from when
	// it was first found to be early, by the database's clock. Make it longer
	// than messages are retried, or a version whose handler fails for a while
	// sends those after it to AfterWindow. Of several that are held the lowest
	// goes first, so that one whose own window is over may be held longer: for
	// four windows at most. Defaults to [DefaultWindow], 15 minutes.
	Window time.Duration

	// AfterWindow defaults to Quarantine.
	AfterWindow AfterWindow

	// OnGap decides in the place of AfterWindow, in the transaction of the
	// message: it may fetch what is missing from elsewhere, and write it. If it
	// returns Apply, the versions that are missing count as applied. An error is
	// an attempt of the message that failed. It may be called again for the same
	// gap if the transaction is rolled back. Defaults to nil.
	OnGap func(ctx context.Context, tx *sql.Tx, gap Gap) (AfterWindow, error)

	// Logger defaults to slog's default logger; watermill.NopLogger{} silences it.
	Logger watermill.LoggerAdapter

	// MeterProvider is where the instruments are made. Defaults to
	// OpenTelemetry's global one, which does nothing until another is set.
	MeterProvider metric.MeterProvider
}

// longestWindow keeps several windows within a Duration.
const longestWindow = 365 * 24 * time.Hour

func (c Config) withDefaults() Config {
	c.Schema = c.Schema.WithDefaults()
	c.Window = cmp.Or(c.Window, defaults.SequenceWindow)
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
	if c.First != FromOne && c.First != FromZero {
		errs = append(errs, fmt.Errorf("First is %d, neither FromOne nor FromZero", c.First))
	}
	if c.Window < 100*time.Millisecond || c.Window > longestWindow {
		errs = append(errs, fmt.Errorf("Window is %v, not in 100ms..%v", c.Window, longestWindow))
	}
	if c.AfterWindow != Apply && c.AfterWindow != Quarantine {
		errs = append(errs, fmt.Errorf("AfterWindow is %d, neither Quarantine nor Apply", c.AfterWindow))
	}
	if c.OnGap != nil && c.AfterWindow != Quarantine {
		errs = append(errs, errors.New("AfterWindow is set together with OnGap, which decides in its place"))
	}
	return errors.Join(errs...)
}
