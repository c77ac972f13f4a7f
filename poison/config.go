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

// Config configures a [Quarantine]. The zero value is ready for use.
type Config struct {
	// Schema names the tables and the kind of database. Defaults to PostgreSQL
	// and the prefix "once_".
	Schema schema.Config

	// OnQuarantine is called for each new entry after the commit, for alarms. The
	// calls come one after another from a goroutine of their own: they delay no
	// ack, and a panic is logged. While 1,000 entries wait for a call, further
	// entries are logged and not passed to it. Defaults to nothing.
	OnQuarantine func(e Entry)

	// CopyTo is a topic that receives a copy of each quarantined message, for
	// people who want a queue. The copy is published through Outbox in the
	// transaction that stores the entry. It has an id of its own, and metadata
	// that describe the failure, see [CopyReason]. If the outbox refuses the copy,
	// the message is quarantined without it. Defaults to none.
	CopyTo string

	// Outbox returns a publisher into the outbox of tx, as outbox.Publisher
	// does. Required with CopyTo, and not used without it.
	Outbox func(tx *sql.Tx) message.Publisher

	// UnackedWait is how long a message that cannot be stored stays unacked while
	// storing is tried again; then it is handed back to the transport. Defaults
	// to 10 minutes.
	UnackedWait time.Duration

	// ReplayLease is how long a replay of many entries belongs to its process
	// without a renewal. If the process dies, the replay can be resumed after
	// that time. At least 500 ms, like retry's Lease. Defaults to 30 seconds.
	ReplayLease time.Duration

	// ReplayToAbsent allows replays to consumers that are not running: the
	// messages wait until the consumer runs. Defaults to false: such a replay is
	// [ErrNotRunning].
	ReplayToAbsent bool

	// WithoutContent leaves Message, Envelope, Digest and Error out of List,
	// Replayed and Groups, so that a database user with the role of a watcher can
	// call them, see docs/roles.md. Get and Export fail for such a user. Defaults
	// to false.
	WithoutContent bool

	// Consumers are the consumers that have metrics of their own; all others are
	// counted as "other". Defaults to none: one series for all consumers.
	Consumers []string

	// MeterProvider creates the instruments, TracerProvider the spans. They
	// default to OpenTelemetry's global providers, which do nothing until others
	// are set.
	MeterProvider  metric.MeterProvider
	TracerProvider trace.TracerProvider

	// Logger defaults to slog's default logger. Use watermill.NopLogger{} for
	// silence.
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
		errs = append(errs, errors.New("CopyTo is set without Outbox"))
	}
	return errors.Join(errs...)
}
