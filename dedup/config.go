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

	"github.com/watermill-once/once/internal/defaults"
	"github.com/watermill-once/once/schema"
)

// Config configures an [Inbox]. The zero value is ready for use.
type Config struct {
	// Schema selects the kind of database and the prefix of the tables. Defaults
	// to PostgreSQL and "once_".
	Schema schema.Config

	// Consumer is the name under which handled messages are remembered. Never
	// change it: under a new name every message counts as new. Set it only for an
	// Inbox with a single handler, because it is the name for all its handlers: if
	// two of them receive the same message, the second would skip it
	// ([ErrConsumerInUse]).
	//
	// With retry or poison, Consumer must be the name that they use: the name
	// given to retry's Subscriber (otherwise messages fail with
	// [ErrOtherConsumer]), or else the name of the handler. Defaults to that name.
	Consumer string

	// ShareConsumer allows several handlers of a router to have the same consumer
	// name and topic. Set it if one handler is added more than once, to have more
	// messages in flight. Different handlers would skip each other's messages.
	// Defaults to false: the messages of the second handler fail with
	// [ErrConsumerInUse]. With retry's Subscriber, set retry.Config.ShareConsumer
	// instead.
	ShareConsumer bool

	// Outbox returns a publisher that stores messages in tx, such as
	// outbox.Publisher. The inbox uses it to store the messages that a handler
	// returns, in the handler's transaction. Defaults to nil: a message whose
	// handler returns messages then goes to quarantine, because messages that are
	// published after the commit could be lost.
	Outbox func(tx *sql.Tx) message.Publisher

	// Key returns a business key that is remembered besides the message id, such
	// as "capture/order-17". It is for producers that send the same request under
	// a new id each time. A key must be valid UTF-8 without NUL, and have 1 to 255
	// bytes. A message with a new id and a key that was handled is a duplicate, or
	// a collision if its content differs, see Content. With Key, messages need no
	// id. Defaults to nil: only ids are remembered.
	Key func(msg *message.Message) string

	// Content returns the part of a message that must be equal in two messages
	// with the same Key. It is for payloads that contain, for example, the time of
	// sending. Defaults to the payload.
	Content func(msg *message.Message) []byte

	// Idempotent are the names of consumers whose handlers may safely run more
	// than once. They get their transaction and the outbox, but the inbox
	// remembers nothing and accepts any id. A name that no handler has is ignored;
	// once.Consumer logs it. Defaults to none.
	Idempotent []string

	// Batch configures handlers whose messages may share a transaction, see
	// [Inbox.BatchMiddleware]. Its zero value is a good default.
	Batch Batch

	// Retention is how long a message is remembered. [Inbox.Run] removes older
	// rows, except those of messages that are parked or in quarantine, and their
	// Keys. Keys are remembered for at least an hour longer than MaxDuplicateAge.
	// Retention must not be shorter than MaxDuplicateAge. Defaults to 30 days.
	Retention time.Duration

	// MaxDuplicateAge is the longest time after which a duplicate of a handled
	// message may still arrive: the sum of the delays in the outbox, the broker,
	// dead-letter queues and restored backups. Do not count the time that this
	// library parks or quarantines messages. Defaults to 7 days.
	MaxDuplicateAge time.Duration

	// SweepInterval is how often Run removes what is too old. Defaults to 10
	// minutes.
	SweepInterval time.Duration

	// SweptElsewhere states that another process calls Run. Then once.Plugin and
	// once.Consumer do not run it with the router, and the inbox does not warn that
	// it was never called. Set it in a process that may not remove old rows, such
	// as one whose database role does not own the tables of schema.ByDay. Defaults
	// to false.
	SweptElsewhere bool

	// LockTimeout is how long a duplicate waits while the first delivery of the
	// message is being handled. Not used with SQLite, which has its busy_timeout.
	// Defaults to 10 seconds.
	LockTimeout time.Duration

	// IdleTimeout is how long a handler may leave its transaction idle before
	// PostgreSQL ends the session, so that a frozen process does not block
	// duplicates forever. Make it longer than any call that a handler makes to
	// another service. Defaults to 5 minutes. Not used with SQLite.
	IdleTimeout time.Duration

	// Logger defaults to slog's default logger; watermill.NopLogger{} silences it.
	Logger watermill.LoggerAdapter

	// MeterProvider creates the metrics, TracerProvider the spans. Default to
	// OpenTelemetry's global providers, which do nothing until you set others.
	MeterProvider  metric.MeterProvider
	TracerProvider trace.TracerProvider
}

func (c Config) withDefaults() Config {
	c.Schema = c.Schema.WithDefaults()
	c.Batch = c.Batch.withDefaults()
	c.Retention = cmp.Or(c.Retention, 30*24*time.Hour)
	c.MaxDuplicateAge = cmp.Or(c.MaxDuplicateAge, defaults.MaxDuplicateAge)
	c.SweepInterval = cmp.Or(c.SweepInterval, 10*time.Minute)
	c.LockTimeout = cmp.Or(c.LockTimeout, 10*time.Second)
	c.IdleTimeout = cmp.Or(c.IdleTimeout, 5*time.Minute)
	if c.Logger == nil {
		c.Logger = watermill.NewSlogLogger(nil)
	}
	return c
}

func (c Config) validate() error {
	errs := []error{c.Schema.Validate(), c.Batch.validate()}
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
