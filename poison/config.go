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
	// Schema selects the kind of database and the prefix of the tables. Defaults to
	// PostgreSQL and "once_".
	Schema schema.Config

	// OnQuarantine is called for each new entry after the commit, for example to raise an
	// alarm. A separate goroutine makes all calls, one after another. So the calls do not
	// delay acks, and a panic is only logged. While 1,000 entries wait for their calls,
	// further entries are only logged. Defaults to nil.
	OnQuarantine func(e Entry)

	// CopyTo is a topic that receives a copy of each quarantined message, for people who
	// want a dead-letter queue. The copy is published through Outbox, in the transaction
	// that stores the entry. It has its own id, and metadata that describes the failure,
	// see [CopyReason]. If the outbox refuses the copy, the message is quarantined without
	// a copy. Defaults to "": there are no copies.
	CopyTo string

	// Outbox returns a publisher that stores messages in the outbox, in the transaction tx,
	// for example outbox.Publisher. It is required if CopyTo is set. Without CopyTo, it is
	// not used.
	Outbox func(tx *sql.Tx) message.Publisher

	// UnackedWait is how long a message stays unacked while it cannot be stored. After this
	// time the message is given back to the transport. Defaults to 10 minutes.
	UnackedWait time.Duration

	// ReplayLease is the length of the lease of a replay of many entries. The process that
	// runs the replay renews the lease. If the process dies, the replay can be resumed when
	// the lease has ended. The minimum is 500 ms, as for retry's Lease. Defaults to 30
	// seconds.
	ReplayLease time.Duration

	// ReplayToAbsent allows replays to consumers that are not running. The messages then
	// wait until the consumer runs. Defaults to false: such a replay returns
	// [ErrNotRunning].
	ReplayToAbsent bool

	// WithoutContent makes List, Replayed and Groups leave out Message, Envelope, Digest,
	// Error and Stack. A database user with the role of a watcher can then call these three
	// methods, see docs/roles.md. For such a user, Get and Export fail. Defaults to false.
	WithoutContent bool

	// Consumers lists the consumers that have their own series in the metrics. All other
	// consumers are counted as "other". Defaults to none: all consumers share one series.
	Consumers []string

	// MeterProvider creates the metrics, and TracerProvider creates the spans. Both default
	// to OpenTelemetry's global providers, which do nothing until you set other providers.
	MeterProvider  metric.MeterProvider
	TracerProvider trace.TracerProvider

	// Logger defaults to slog's default logger. To log nothing, set
	// watermill.NopLogger{}.
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
