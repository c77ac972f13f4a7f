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
	// IgnoreOlder applies a version that is above the last applied version. It acks every
	// other version without calling the handler. Use it only if each message contains the
	// whole state of its aggregate, so that the newest message is enough. Concurrency and
	// retries can change the order of messages. If a version arrives after a higher version
	// was applied, it is never applied. Each version must have only one message: a second
	// message with the same version is ignored.
	IgnoreOlder Policy = iota

	// HoldForGap applies only the version that follows the last applied version. It holds a
	// higher version until the versions before it have arrived, or until Config.Window
	// ends. Use it if each message describes a change.
	//
	// HoldForGap ignores only versions that it has applied. If a version arrives after a
	// higher version was applied without it, the message goes to quarantine with [ErrGap],
	// and a replay applies it, out of order. Config.OnStale can handle it instead.
	// As with IgnoreOlder, each version must have only one message.
	HoldForGap
)

// AfterWindow determines what happens to a message that was held for the whole window
// while a version before it is still missing.
type AfterWindow int

const (
	// Quarantine sends the message to quarantine with [ErrGap]. If the message is replayed,
	// it is held for one more window, and is then applied.
	Quarantine AfterWindow = iota

	// Apply handles the message. If a missing version arrives later, it goes to quarantine
	// or to OnStale. But if OnGap has returned Apply, a missing version that
	// arrives later is ignored, because OnGap has replaced it.
	Apply
)

// Config configures a [Resequencer]. Tx is required. The zero value of all other
// fields is ready for use.
type Config struct {
	// Schema selects the kind of database and the prefix of the tables. Defaults
	// to PostgreSQL and "once_".
	Schema schema.Config

	// Tx returns the transaction of the message that is being handled. Set it to
	// dedup.TxFromContext, or to a function that does the same. It is required.
	Tx func(ctx context.Context) (*sql.Tx, bool)

	// Policy defaults to IgnoreOlder.
	Policy Policy

	// FromZero sets the first version of every aggregate to 0; otherwise it is 1. A higher
	// version of a new aggregate is held until the first version has arrived, or until
	// Window ends. A lower version fails with [ErrInvalidVersion]. FromZero is not used
	// with IgnoreOlder.
	FromZero bool

	// Window is how long a message is held while versions before it are missing. It begins
	// when the message is first found to be early, and is measured by the database's clock.
	// Make the window longer than the time for which messages are retried. Otherwise the
	// window of a message can end while a version before it is still being retried. If
	// several versions are held, the lowest version is applied first. So a message may be
	// held longer than its own window, but for at most four windows. Defaults to 15
	// minutes; once.Consumer uses a longer default if its retries take longer.
	Window time.Duration

	// AfterWindow defaults to Quarantine.
	AfterWindow AfterWindow

	// OnGap decides in place of AfterWindow. It is called in the transaction of the
	// message. It may fetch the missing state from another source and write it. If OnGap
	// returns Apply, the missing versions count as applied. If it returns an error, this
	// counts as a failed attempt of the message. If the transaction is rolled back, OnGap
	// is called again for the same gap. Defaults to nil.
	OnGap func(ctx context.Context, tx *sql.Tx, gap Gap) (AfterWindow, error)

	// OnStale is called instead of the handler if the version of a message is below the
	// last applied version, and was itself not applied. With both policies, OnStale
	// replaces the default treatment of such a message (quarantine, or ignoring it). OnStale runs
	// in the transaction of the message, so it can read the state, merge msg into the state
	// and write the result. gap.Last is above gap.Version, and gap.Waited is 0. If OnStale
	// returns nil, the message is acked. If it returns an error, this counts as a failed
	// attempt of the message. OnStale is not called for a version that is known to be
	// applied. It is also called for a replayed message. Defaults to nil.
	OnStale func(ctx context.Context, tx *sql.Tx, gap Gap, msg *message.Message) error

	// Logger defaults to slog's default logger. To log nothing, set
	// watermill.NopLogger{}.
	Logger watermill.LoggerAdapter

	// MeterProvider creates the metrics. Defaults to OpenTelemetry's global provider,
	// which does nothing until you set another provider.
	MeterProvider metric.MeterProvider
}

// longestWindow is the maximum value of Window. A multiple of Window must fit into a
// time.Duration.
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

// keepsLate returns true if a late version is passed to OnStale or goes to quarantine.
// It returns false if a late version is only acked. A version is late if it was not
// applied, and arrives after a higher version was applied.
func (c Config) keepsLate() bool {
	return c.OnStale != nil || c.Policy == HoldForGap
}
