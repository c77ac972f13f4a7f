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

	"github.com/watermill-once/once/schema"
)

// Config is what an [Inbox] can be told. The zero value is ready for use.
type Config struct {
	// Schema says which tables, in which kind of database. Defaults to
	// PostgreSQL and the prefix "once_".
	Schema schema.Config

	// Consumer is the name under which messages count as done. It must stay
	// the same for good: under a new name everything is unprocessed again. It
	// is that of every handler this Inbox is around: of two that get the same
	// message, one would skip it ([ErrConsumerInUse]). So set it where the Inbox is
	// for one handler.
	// Where there is retry or poison it must be the name that they know messages
	// by, or what they look for in the inbox is not there: that given to retry's
	// Subscriber (any other is [ErrOtherConsumer]), or else the handler's. That is
	// also what it defaults to.
	Consumer string

	// ShareConsumer says that several handlers of a router may have one consumer
	// name and topic: one handler that was added more than once, to have more
	// messages in flight. Of different handlers each would skip what another has
	// done. Defaults to false: the messages of the second handler are
	// [ErrConsumerInUse]. Behind retry's Subscriber, retry.Config.ShareConsumer
	// says so.
	ShareConsumer bool

	// Outbox returns a publisher into the outbox of tx, as outbox.Publisher
	// does. What a handler produces is stored through it in the handler's own
	// transaction. Defaults to nil: a handler that produces messages is then
	// an error, because published after the commit they could be lost.
	Outbox func(tx *sql.Tx) message.Publisher

	// Key returns what a message is remembered by besides its id: the key of
	// what it asks for, such as "capture/order-17", from producers that give
	// the same request another id each time. It must be usable as an id is:
	// not empty, valid UTF-8 without NUL, at most 255 bytes. A message of
	// another id with a key that is done is a duplicate, or a collision if it
	// differs, see Content. With Key, messages need no id. Defaults to none.
	Key func(msg *message.Message) string

	// Content returns what must be the same in two messages of one Key, for
	// payloads that name the time of sending. Defaults to the payload.
	Content func(msg *message.Message) []byte

	// Idempotent are the names of consumers whose handlers may run any number
	// of times, by nature. They get their transaction and the outbox, but
	// nothing is remembered, and any id will do. A name that no handler has makes
	// no difference; once.Consumer logs it. Defaults to none.
	Idempotent []string

	// Batch is for handlers that may share a transaction, see
	// [Inbox.BatchMiddleware]. Its zero value is a good default.
	Batch Batch

	// Retention is how long a message is remembered: [Inbox.Run] removes what
	// is older, except for messages that wait or are in quarantine, and their
	// Keys. Keys are remembered for an hour longer than MaxDuplicateAge at least.
	// It is refused if it is shorter than MaxDuplicateAge. Defaults to 30 days.
	Retention time.Duration

	// MaxDuplicateAge is the longest time after which a copy of a message that
	// was handled may still arrive: what outbox, broker, dead-letter queues and
	// restored backups can hold it back in all. Messages that this library has
	// parked or quarantined need not be reckoned with. Defaults to 7 days.
	MaxDuplicateAge time.Duration

	// SweepInterval is how often Run removes what is too old. Defaults to 10
	// minutes.
	SweepInterval time.Duration

	// SweptElsewhere says that another process calls Run: the router does not
	// run it with once.Plugin or once.Consumer, and nothing warns that it is not
	// called. Set it where the process may not remove old rows, such as one that
	// does not own the tables of schema.ByDay. Defaults to false.
	SweptElsewhere bool

	// LockTimeout is how long a copy of a message waits for another copy that
	// is being handled. Not used with SQLite, which has its busy_timeout.
	// Defaults to 10 seconds.
	LockTimeout time.Duration

	// IdleTimeout is how long a handler may leave its transaction idle before
	// PostgreSQL ends it, so that a frozen process does not hold up other
	// copies for ever. It is to be longer than any call a handler makes to
	// elsewhere. Defaults to 5 minutes.
	IdleTimeout time.Duration

	// Logger defaults to slog's default logger; watermill.NopLogger{} silences it.
	Logger watermill.LoggerAdapter

	// MeterProvider is where the instruments are made, TracerProvider the
	// spans. Default to OpenTelemetry's global ones, which do nothing until
	// others are set.
	MeterProvider  metric.MeterProvider
	TracerProvider trace.TracerProvider
}

// DefaultMaxDuplicateAge is what Config.MaxDuplicateAge defaults to.
const DefaultMaxDuplicateAge = 7 * 24 * time.Hour

func (c Config) withDefaults() Config {
	c.Schema = c.Schema.WithDefaults()
	c.Batch = c.Batch.withDefaults()
	c.Retention = cmp.Or(c.Retention, 30*24*time.Hour)
	c.MaxDuplicateAge = cmp.Or(c.MaxDuplicateAge, DefaultMaxDuplicateAge)
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
		errs = append(errs, errors.New("Content is set without Key: messages of one id are compared by their payloads"))
	}
	if c.MaxDuplicateAge < 0 {
		errs = append(errs, fmt.Errorf("MaxDuplicateAge is %v: negative", c.MaxDuplicateAge))
	}
	if c.Retention < c.MaxDuplicateAge {
		errs = append(errs, fmt.Errorf("Retention is %v, shorter than MaxDuplicateAge, %v: a late copy would be handled again",
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
