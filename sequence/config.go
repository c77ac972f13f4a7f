package sequence

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"go.opentelemetry.io/otel/metric"

	"github.com/watermill-once/once/internal/defaults"
	"github.com/watermill-once/once/schema"
)

// Policy decides which versions are applied.
type Policy int

const (
	// IgnoreOlder applies a version that is above the last applied one. It acks every
	// other version without calling the handler. Use it only if each message contains
	// the whole state of its aggregate, so that the newest message is enough.
	// Concurrency and retries can change the order of messages, and a version that
	// arrives after a higher one is never applied. Each version must have only one
	// message: a second message with the same version is ignored.
	IgnoreOlder Policy = iota

	// HoldForGap applies only the version that follows the last applied one. It holds a
	// higher version until the versions before it have arrived, or until Config.Window
	// ends. Use it if a message describes a change.
	//
	// It ignores only versions that it has applied. If a version arrives after a higher
	// version was applied without it, Config.Late decides: by default it goes to
	// quarantine with [ErrGap], and a replay applies it, out of order. As with
	// IgnoreOlder, each version must have only one message.
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

// AfterWindow says what happens to a message that was held for the whole window while a
// version before it is still missing.
type AfterWindow int

const (
	// Quarantine sends the message to quarantine, with [ErrGap]. A replayed message
	// is held for one more window, and is then applied.
	Quarantine AfterWindow = iota

	// Apply handles the message. For a missing version that arrives later, Config.Late
	// decides. If OnGap returned Apply, it is ignored instead, because OnGap has
	// replaced it.
	Apply
)

// Late says what happens with HoldForGap to a message that arrives after a higher version
// was applied without it.
type Late int

const (
	// QuarantineLate sends the message to quarantine, with [ErrGap]. A replay applies it,
	// out of order.
	QuarantineLate Late = iota

	// IgnoreLate acks the message as stale, without calling the handler. The change that
	// it describes is lost at this consumer.
	IgnoreLate
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

	// Window is how long a message is held while versions before it are missing. It
	// begins when the message is first found to be early, by the database's clock. Make
	// it longer than the time for which messages are retried. Otherwise AfterWindow
	// applies to messages behind a version that is still being retried. If several
	// versions are held, the lowest is applied first. So a message may be held longer
	// than its own window, but for four windows at most. Defaults to 15 minutes;
	// once.Consumer makes it longer if its retries take longer.
	Window time.Duration

	// AfterWindow defaults to Quarantine.
	AfterWindow AfterWindow

	// OnGap decides instead of AfterWindow. It is called in the transaction of the
	// message, and may fetch the missing state from elsewhere and write it. If it
	// returns Apply, the missing versions count as applied. An error counts as a failed
	// attempt of the message. If the transaction is rolled back, OnGap is called again
	// for the same gap. Defaults to nil.
	OnGap func(ctx context.Context, tx *sql.Tx, gap Gap) (AfterWindow, error)

	// Late defaults to QuarantineLate. It is not used with IgnoreOlder, which ignores
	// such messages.
	Late Late

	// OnStale is called instead of the handler, with both policies, for a message whose
	// version is below the last applied one and was not applied itself. It replaces Late
	// and IgnoreOlder's ignoring. It runs in the transaction of the message, so it can
	// read the state, merge msg into it and write it. gap.Last is above gap.Version, and
	// gap.Waited is 0. If OnStale returns nil, the message is acked. An error counts as a
	// failed attempt of the message. OnStale is not called for a version that is known
	// to be applied. A replay calls it, too. Defaults to nil.
	OnStale func(ctx context.Context, tx *sql.Tx, gap Gap, msg *message.Message) error

	// Logger defaults to slog's default logger. Use watermill.NopLogger{} for silence.
	Logger watermill.LoggerAdapter

	// MeterProvider creates the metrics. Defaults to OpenTelemetry's global
	// provider, which does nothing until you set another.
	MeterProvider metric.MeterProvider
}

// longestWindow is the highest Window. A multiple of it must fit into a time.Duration.
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
	if c.Late != QuarantineLate && c.Late != IgnoreLate {
		errs = append(errs, fmt.Errorf("Late is %d, neither QuarantineLate nor IgnoreLate", c.Late))
	}
	if c.OnStale != nil && c.Late != QuarantineLate {
		errs = append(errs, errors.New("Late is set together with OnStale, which decides instead: remove one of them"))
	}
	return errors.Join(errs...)
}

// keepsLate reports whether a version that was never applied needs more than an ack when
// it arrives after a higher one.
func (c Config) keepsLate() bool {
	return c.OnStale != nil || c.Policy == HoldForGap && c.Late == QuarantineLate
}
