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
	// Schema selects the database and the prefix of the tables. Defaults to PostgreSQL and "once_".
	Schema schema.Config

	// Consumer is the name under which handled messages are remembered. Never change it: under a
	// new name, every message counts as new. Set it only if the Inbox has a single handler. If a
	// second handler of a router has the same name and topic, its messages fail with
	// [ErrConsumerInUse], because it would skip each message that the first one has handled.
	//
	// Defaults to the name that was given to retry's Subscriber, or without it to the name of the
	// router's handler. Packages retry and poison use these names too: with retry's Subscriber,
	// another name makes messages fail with [ErrOtherConsumer].
	Consumer string

	// Outbox returns a publisher that writes into the outbox in the transaction tx, such as
	// outbox.Publisher. The inbox stores the messages that a handler returns with it. Defaults to
	// nil: a message whose handler returns messages then goes to quarantine, because they could be
	// lost if they were published after the commit.
	Outbox func(tx *sql.Tx) message.Publisher

	// Key returns a business key, such as "capture/order-17", which is remembered in addition to
	// the message id, for producers that send the same request several times with different ids. A
	// message with a new id and a known key is a duplicate if its Content is equal, and a collision
	// otherwise. A key is valid UTF-8 without NUL, of 1 to 255 bytes. With Key, messages need no
	// id. Defaults to nil: only ids are remembered.
	Key func(msg *message.Message) string

	// Content returns the part of a message that must be equal in all messages with the same Key,
	// for payloads with a part that changes, such as the time of sending. Defaults to the payload.
	Content func(msg *message.Message) []byte

	// Idempotent lists the consumers whose handlers may safely run more than once. They get a
	// transaction and the outbox, but the inbox does not remember their messages, and accepts any
	// id. once.Consumer logs names that no handler has. Defaults to none.
	Idempotent []string

	// Batch configures handlers in shared transactions, see [Inbox.BatchMiddleware].
	Batch Batch

	// Retention is how long a message is remembered, before [Inbox.Run] removes its row. The ids
	// and keys of parked and quarantined messages stay. Business keys are remembered for at least
	// an hour longer than MaxDuplicateAge, and Retention must not be shorter than it. Defaults to
	// 30 days.
	Retention time.Duration

	// MaxDuplicateAge is the longest time after which a duplicate may still arrive: the sum of the
	// possible delays in the outbox, the broker, dead-letter queues and restored backups, without
	// the time for which this library parks or quarantines messages. Defaults to 7 days.
	MaxDuplicateAge time.Duration

	// SweepInterval is how often Run removes expired rows. Defaults to 10 minutes.
	SweepInterval time.Duration

	// SweptElsewhere says that another process calls Run. If it is true, once.Plugin and
	// once.Consumer do not call Run, and the inbox does not warn. Set it in a process that has no
	// right to remove old rows, for example because its role does not own the tables of
	// schema.ByDay. Defaults to false.
	SweptElsewhere bool

	// LockTimeout is how long a duplicate waits while the first delivery is being handled. Then its
	// statement is canceled, its connection is closed, and it is tried again; no attempt is
	// counted. The handler's own statements keep the lock_timeout of their connection, also after a
	// batch, which sets it for its insert. SQLite uses its busy_timeout instead. Defaults to 10
	// seconds.
	LockTimeout time.Duration

	// IdleTimeout is how long a handler may leave its transaction idle before PostgreSQL ends the
	// session. A suspended process can then not block duplicates forever. It must be longer than
	// any call of a handler to another service. SQLite does not use it. Defaults to 5 minutes.
	IdleTimeout time.Duration

	// Logger defaults to slog's default logger. Set watermill.NopLogger{} to log nothing.
	Logger watermill.LoggerAdapter

	// MeterProvider creates the metrics, and TracerProvider creates the spans. Both default to
	// OpenTelemetry's global providers.
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
	for _, field := range []struct {
		name  string
		value time.Duration
	}{
		{"Retention", c.Retention}, {"SweepInterval", c.SweepInterval}, {"LockTimeout", c.LockTimeout}, {"IdleTimeout", c.IdleTimeout},
	} {
		if field.value < time.Millisecond {
			errs = append(errs, fmt.Errorf("%s is %v: less than a millisecond", field.name, field.value))
		}
	}
	return errors.Join(errs...)
}
