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

// Policy decides which versions are applied.
type Policy int

const (
	// IgnoreOlder applies a version that is above the last applied one, and acks
	// every other version without a call of the handler. Use it only if each
	// message contains the whole state of its aggregate, so that the newest message
	// is enough. Concurrency and retries can change the order of messages; a version
	// that is overtaken is never applied. Each version must have one message: a
	// second message with the same version is ignored.
	IgnoreOlder Policy = iota

	// HoldForGap applies only the version that follows the last applied one. It
	// holds a higher version until the versions before it have arrived, or until
	// Config.Window ends. Use it if a message describes a change.
	//
	// It ignores only versions that it has applied. A version that arrives after a
	// higher version was applied without it goes to quarantine, with [ErrGap]. A
	// replay then applies it, out of order. As with IgnoreOlder, each version must
	// have one message.
	HoldForGap
)

// First is the first version of every aggregate. It is used with HoldForGap.
type First int

const (
	// FromOne and FromZero hold other versions of a new aggregate until version 1
	// (or 0) has arrived, or until Config.Window ends. A lower version fails with
	// [ErrInvalidVersion].
	FromOne First = iota
	FromZero
)

// AfterWindow decides about a message that was held for the whole window, if a
// version before it is still missing.
type AfterWindow int

const (
	// Quarantine gives the message up, with [ErrGap]. A replay holds it once more,
	// and then applies it.
	Quarantine AfterWindow = iota

	// Apply handles the message. A missing version that arrives later goes to
	// quarantine, with [ErrGap]. If OnGap returned Apply, it is ignored instead,
	// because OnGap has replaced it.
	Apply
)

// Config configures a [Resequencer]. Tx is required. The zero value of all other
// fields is ready for use.
type Config struct {
	// Schema selects the kind of database and the prefix of the tables. Defaults
	// to PostgreSQL and "once_".
	Schema schema.Config

	// Tx returns the transaction of the message that is being handled, such as
	// dedup.TxFromContext. It is required.
	Tx func(ctx context.Context) (*sql.Tx, bool)

	// Policy defaults to IgnoreOlder.
	Policy Policy

	// First defaults to FromOne. It is not used with IgnoreOlder.
	First First

	// Window is how long a message is held for the versions before it. It begins
	// when the message is first found to be early, by the database's clock. Make it
	// longer than messages are retried; otherwise AfterWindow applies to messages
	// behind a version that is still retried. Of several held versions the lowest
	// is applied first, so that a message may be held longer than its own window,
	// for four windows at most. Defaults to 15 minutes; once.Consumer makes it
	// longer if its retries take longer.
	Window time.Duration

	// AfterWindow defaults to Quarantine.
	AfterWindow AfterWindow

	// OnGap decides instead of AfterWindow, in the transaction of the message. It
	// may fetch the missing state from elsewhere and write it. If it returns Apply,
	// the missing versions count as applied. An error counts as a failed attempt of
	// the message. It is called again for the same gap if the transaction is rolled
	// back. Defaults to nil.
	OnGap func(ctx context.Context, tx *sql.Tx, gap Gap) (AfterWindow, error)

	// Logger defaults to slog's default logger; watermill.NopLogger{} silences it.
	Logger watermill.LoggerAdapter

	// MeterProvider creates the metrics. Defaults to OpenTelemetry's global
	// provider, which does nothing until you set another.
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
		errs = append(errs, errors.New("Tx is nil: set it to dedup.TxFromContext"))
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
		errs = append(errs, errors.New("AfterWindow is set together with OnGap, which decides instead: remove one of them"))
	}
	return errors.Join(errs...)
}
