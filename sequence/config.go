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

	"github.com/watermill-once/once/internal/usercode"
	"github.com/watermill-once/once/schema"
)

// Policy decides which versions are applied.
type Policy int

const (
	// IgnoreOlder applies a version above the last applied one, and acks every other without
	// calling the handler. Use it only if each message contains the whole state of its aggregate.
	// Concurrency and retries can change the order of messages, and a version that arrives after a
	// higher one is never applied. Each version must have only one message: a second one is
	// ignored.
	IgnoreOlder Policy = iota

	// HoldForGap applies only the version that follows the last applied one, and holds a higher one
	// until those before it have arrived, or Config.Window ends. Use it if each message describes a
	// change.
	//
	// HoldForGap ignores only versions that it has applied. A message that arrives after a higher
	// version was applied without it goes to quarantine with [ErrGap], and a replay applies it, out
	// of order, unless Config.OnStale handles it. Each version must have only one message.
	HoldForGap
)

// AfterWindow is what happens to a message that was held for the whole window while a version
// before it is still missing.
type AfterWindow int

const (
	// Quarantine sends it to quarantine with [ErrGap]. A replayed one is held for one more window,
	// and then applied.
	Quarantine AfterWindow = iota

	// Apply handles it. A missing version that arrives later goes to quarantine or to OnStale, or
	// is ignored if OnGap has returned Apply, because OnGap has replaced it.
	Apply
)

// Config configures a [Resequencer]. Tx is required. The other fields may be zero.
type Config struct {
	// Schema selects the database and the prefix of the tables. Defaults to PostgreSQL and "once_".
	Schema schema.Config

	// Tx returns the transaction of the message, like dedup.TxFromContext. Required.
	Tx func(ctx context.Context) (*sql.Tx, bool)

	// Policy defaults to IgnoreOlder.
	Policy Policy

	// FromZero sets the first version of every aggregate to 0 in place of 1. A higher version of a
	// new aggregate is held until the first one has arrived, or Window ends. A lower one fails with
	// [ErrInvalidVersion]. It is not used with IgnoreOlder.
	FromZero bool

	// Window is how long a message is held while versions before it are missing, from when it was
	// first found to be early, by the database's clock. Make it longer than messages are retried:
	// otherwise it can end while an earlier version is still being retried. Of several held
	// versions the lowest is applied first, so a message may be held longer, but for at most four
	// windows. Defaults to 15 minutes, in once.Consumer to longer if its retries take longer.
	Window time.Duration

	// AfterWindow defaults to Quarantine.
	AfterWindow AfterWindow

	// OnGap decides in place of AfterWindow, in the transaction of the message. It may fetch the
	// missing state from another source and write it: if it returns Apply, the missing versions
	// count as applied. An error counts as a failed attempt. After a rollback, it is called again
	// for the same gap. Defaults to nil.
	OnGap func(ctx context.Context, tx *sql.Tx, gap Gap) (AfterWindow, error)

	// OnStale is called instead of the handler if the version of a message is below the last
	// applied one, and was not applied itself, in place of the quarantine, or of ignoring it. In
	// the transaction of the message, it can read the state, merge msg into it and write the
	// result. gap.Last is above gap.Version, and gap.Waited is 0. If OnStale returns nil, the
	// message is acked; an error counts as a failed attempt. It is not called for a version that is
	// known to be applied, but also for a replayed message. Defaults to nil.
	OnStale func(ctx context.Context, tx *sql.Tx, gap Gap, msg *message.Message) error

	// Logger defaults to slog's default logger. To log nothing, set watermill.NopLogger{}.
	Logger watermill.LoggerAdapter

	// MeterProvider creates the metrics. Defaults to OpenTelemetry's global provider.
	MeterProvider metric.MeterProvider
}

// A multiple of Window must fit into a time.Duration.
const longestWindow = 365 * 24 * time.Hour

func (c Config) withDefaults() Config {
	c.Schema = c.Schema.WithDefaults()
	c.Window = cmp.Or(c.Window, usercode.DefaultSequenceWindow)
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

// keepsLate reports whether a late version, which arrives after a higher one was applied without
// it, goes to OnStale or to quarantine, and is not only acked.
func (c Config) keepsLate() bool {
	return c.OnStale != nil || c.Policy == HoldForGap
}
