package poison

import (
	"cmp"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/watermill-once/once/schema"
)

// Config is what a [Quarantine] can be told. The zero value is ready for use.
type Config struct {
	// Schema says which tables, in which kind of database. Defaults to
	// PostgreSQL and the prefix "once_".
	Schema schema.Config

	// OnQuarantine is called after a message was stored, for an alarm. It has
	// a goroutine of its own, one entry after the other: it holds up no ack,
	// and a panic is logged. While it is behind by 1,000 entries it is not told
	// of more. Defaults to nothing.
	OnQuarantine func(e Entry)

	// CopyTo is a topic to which a copy of each message that is quarantined
	// goes, for people who want a queue: through Outbox, in the transaction that
	// stores the entry. The copy has an id of its own, and metadata that say
	// what happened: see [CopyReason]. One that the outbox refuses is left out.
	// Defaults to none.
	CopyTo string

	// Outbox returns a publisher into the outbox of tx, as outbox.Publisher
	// does. Required with CopyTo, and not used without.
	Outbox func(tx *sql.Tx) message.Publisher

	// UnackedWait is how long a message is kept, neither acked nor nacked, while it
	// cannot be stored; then it is handed back to the transport. Defaults to
	// 10 minutes.
	UnackedWait time.Duration

	// ReplayLease is how long a replay of many belongs to the process that runs
	// it without being renewed: when it has died, the replay can be resumed
	// after that time. At least 500 ms, as retry's Lease. Defaults to 30 seconds.
	ReplayLease time.Duration

	// ReplayToAbsent lets messages be replayed to consumers that nobody runs:
	// they wait until somebody does. Defaults to false: that is [ErrNotRunning].
	ReplayToAbsent bool

	// Consumers are the names that counters tell apart; all others are
	// "other". Defaults to none: one series for all.
	Consumers []string

	// MeterProvider is where the instruments are made, TracerProvider the
	// spans. Default to OpenTelemetry's global ones, which do nothing until
	// others are set.
	MeterProvider  metric.MeterProvider
	TracerProvider trace.TracerProvider

	// Logger defaults to slog's default logger; watermill.NopLogger{} silences it.
	Logger watermill.LoggerAdapter
}

func (c Config) withDefaults() Config {
	c.Schema = c.Schema.WithDefaults()
	c.UnackedWait = cmp.Or(c.UnackedWait, 10*time.Minute)
	c.ReplayLease = cmp.Or(c.ReplayLease, 30*time.Second)
	if c.Logger == nil {
		c.Logger = watermill.NewSlogLogger(nil)
	}
	return c
}

func (c Config) validate() error {
	errs := []error{c.Schema.Validate()}
	if c.UnackedWait < 0 {
		errs = append(errs, fmt.Errorf("UnackedWait is %v: negative", c.UnackedWait))
	}
	if c.ReplayLease < 500*time.Millisecond {
		errs = append(errs, fmt.Errorf("ReplayLease is %v: less than 500 ms", c.ReplayLease))
	}
	if c.CopyTo != "" && c.Outbox == nil {
		errs = append(errs, errors.New("CopyTo is set, and Outbox is not"))
	}
	return errors.Join(errs...)
}
