package dedup

import (
	"cmp"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/watermill-once/once/internal/usercode"
	"github.com/watermill-once/once/schema"
)

// Config configures an [Inbox]. The zero value is ready for use.
type Config struct {
	// Schema contains the kind of database and the prefix of the tables. Defaults to
	// PostgreSQL and "once_".
	Schema schema.Config

	// Consumer is the name under which handled messages are remembered. Never change it:
	// under a new name, every message counts as new. Set Consumer only if the Inbox has a
	// single handler, because all handlers of the Inbox use this name. If a second handler
	// of a router has the same name and topic, its messages fail with [ErrConsumerInUse]:
	// the second handler would otherwise skip each message that the first one has handled.
	//
	// Defaults to the name that was given to retry's Subscriber. Without retry's
	// Subscriber, the default is the name of the router's handler. Packages retry and
	// poison use these names too, so do not set Consumer to another name if you use one of
	// these packages. With retry's Subscriber, another name makes messages fail with
	// [ErrOtherConsumer].
	Consumer string

	// Outbox returns a publisher that writes messages into the outbox in the transaction
	// tx, such as outbox.Publisher. The inbox uses this publisher to store the messages
	// that a handler returns, in the transaction of the handler. Defaults to nil. Without
	// Outbox, a message whose handler returns messages goes to quarantine, because the
	// returned messages could be lost if they were published after the commit.
	Outbox func(tx *sql.Tx) message.Publisher

	// Key returns a business key, such as "capture/order-17", which is remembered in
	// addition to the message id. Use it if a producer sends the same request several times
	// with different ids. A message with a new id is a duplicate if its key is known and
	// its content is equal. If the content differs, the message is a collision, see the
	// field Content. A key must be valid UTF-8 without NUL, and have 1 to 255 bytes. With
	// Key, messages need no id. Defaults to nil: only ids are remembered.
	Key func(msg *message.Message) string

	// Content returns the part of a message that must be equal in all messages with the
	// same Key. Use it if the payload contains a part that changes, such as the time of
	// sending. Defaults to the payload.
	Content func(msg *message.Message) []byte

	// Idempotent lists the names of consumers whose handlers may safely run more than once.
	// These handlers get a transaction and the outbox, but the inbox does not remember
	// their messages, and accepts any id. The inbox ignores names that no handler has, and
	// once.Consumer logs them. Defaults to none.
	Idempotent []string

	// Batch configures handlers whose messages may share a transaction, see
	// [Inbox.BatchMiddleware]. The zero value is a good default.
	Batch Batch

	// Retention is how long a message is remembered. [Inbox.Run] removes older rows. It
	// keeps the ids and the business keys of messages that are parked or in quarantine.
	// Business keys are remembered for at least an hour longer than MaxDuplicateAge.
	// Retention must not be shorter than MaxDuplicateAge. Defaults to 30 days.
	Retention time.Duration

	// MaxDuplicateAge is the longest time after which a duplicate of a handled message may
	// still arrive. It is the sum of the possible delays in the outbox, the broker,
	// dead-letter queues and restored backups. Do not add the time for which this library
	// parks or quarantines messages. Defaults to 7 days.
	MaxDuplicateAge time.Duration

	// SweepInterval is how often Run removes expired rows. Defaults to 10 minutes.
	SweepInterval time.Duration

	// SweptElsewhere says that another process calls Run. If it is true, once.Plugin and
	// once.Consumer do not call Run while the router runs, and the inbox does not warn that
	// Run was never called. Set it in a process that has no right to remove old rows, for
	// example because its database role does not own the tables of schema.ByDay. Defaults
	// to false.
	SweptElsewhere bool

	// LockTimeout is how long a duplicate waits while the first delivery of the message is
	// being handled. When this time is over, the statement of the duplicate is canceled,
	// and its connection is closed. The duplicate is tried again, and no attempt is
	// counted. The handler's own statements use the lock_timeout of their connection. A
	// batch sets lock_timeout while it inserts into the inbox, and then resets it to the
	// connection's original value. SQLite uses its busy_timeout instead. Defaults to 10
	// seconds.
	LockTimeout time.Duration

	// IdleTimeout is how long a handler may leave its transaction idle before PostgreSQL
	// ends the session. It prevents a suspended process from blocking duplicates forever.
	// It must be longer than any call of a handler to another service. SQLite does not use
	// it. Defaults to 5 minutes.
	IdleTimeout time.Duration

	// Logger defaults to slog's default logger. Use watermill.NopLogger{} for silence.
	Logger watermill.LoggerAdapter

	// MeterProvider creates the metrics, and TracerProvider creates the spans. They default
	// to OpenTelemetry's global providers, which do nothing until you set other global
	// providers.
	MeterProvider  metric.MeterProvider
	TracerProvider trace.TracerProvider
}

func (c Config) withDefaults() Config {
	c.Schema = c.Schema.WithDefaults()
	c.Batch = c.Batch.withDefaults()
	c.Retention = cmp.Or(c.Retention, 30*24*time.Hour)
	c.MaxDuplicateAge = cmp.Or(c.MaxDuplicateAge, usercode.DefaultMaxDuplicateAge)
	c.SweepInterval = cmp.Or(c.SweepInterval, 10*time.Minute)
	c.LockTimeout = cmp.Or(c.LockTimeout, 10*time.Second)
	c.IdleTimeout = cmp.Or(c.IdleTimeout, 5*time.Minute)
	if c.Logger == nil {
		c.Logger = watermill.NewSlogLogger(nil)
	}
	return c
}

func (c Config) validate() error {
	errs := []error{c.Batch.validate()}
	if why := unusable(c.Consumer); c.Consumer != "" && why != "" {
		errs = append(errs, fmt.Errorf("Consumer cannot be used: %s", why))
	}
	if slices.Contains(c.Idempotent, "") {
		errs = append(errs, errors.New("Idempotent has an empty name"))
	}
	if c.Content != nil && c.Key == nil {
		errs = append(errs, errors.New("Content is set without Key: messages with the same id are compared by their payloads"))
	}
	if c.MaxDuplicateAge < 0 {
		errs = append(errs, fmt.Errorf("MaxDuplicateAge is %v: negative", c.MaxDuplicateAge))
	}
	if c.Retention < c.MaxDuplicateAge {
		errs = append(errs, fmt.Errorf("Retention is %v, shorter than MaxDuplicateAge, %v: a late duplicate would be handled again",
			c.Retention, c.MaxDuplicateAge))
	}
	for name, value := range map[string]time.Duration{
		"LockTimeout": c.LockTimeout, "IdleTimeout": c.IdleTimeout, "SweepInterval": c.SweepInterval, "Retention": c.Retention,
	} {
		if value < time.Millisecond {
			errs = append(errs, fmt.Errorf("%s is %v: less than a millisecond", name, value))
		}
	}
	return errors.Join(errs...)
}
