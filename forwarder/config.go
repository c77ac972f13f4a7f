package forwarder

import (
	"cmp"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/watermill-once/once/schema"
)

// AfterDead says what happens to the successors of a dead letter that has an
// ordering key.
type AfterDead int

const (
	// SendSuccessors has them sent: a hopeless message does not stop its key for ever.
	SendSuccessors AfterDead = iota

	// BlockKey has them wait until the dead letter is replayed and confirmed,
	// is discarded, or its key is released: see package deadletter.
	BlockKey
)

// Config is what a [Forwarder] can be told. The zero value is ready for use.
type Config struct {
	// Schema says which tables, in which kind of database. Defaults to
	// PostgreSQL and the prefix "once_".
	Schema schema.Config

	// BatchSize is the largest number of messages that one query reads.
	// Defaults to 1,000.
	BatchSize int

	// Window is the largest number of messages that are published and not yet
	// answered: what makes forwarding fast, and how many messages are sent
	// again when the connection to the broker is lost. Defaults to 1,024.
	Window int

	// BufferBytes bounds the payloads and metadata in memory, within the size
	// of one message. Defaults to 64 MiB.
	BufferBytes int

	// Workers is the number of goroutines that call Publish of a publisher
	// that is not an [AsyncPublisher]. Defaults to 16.
	Workers int

	// PollMin and PollMax bound the pause between two queries, which is a
	// quarter of the time for which there has been nothing to send. A Hint ends
	// it. Default to 5 ms and 250 ms.
	PollMin, PollMax time.Duration

	// StallTimeout is how long a topic may have messages in flight and hear
	// nothing about any, before no more of it is read and sent: a queue that
	// does not confirm must not stop the others. It should be more than the
	// publisher waits for a lost connection, or every topic stalls then; with
	// package rabbit's that is 5 seconds. Defaults to 10 seconds.
	StallTimeout time.Duration

	// Lease is how long this instance may be out of touch with the database
	// before another one takes over. It is renewed three times as often.
	// Defaults to 15 seconds.
	Lease time.Duration

	// MaxAttempts is how often a message is refused before it becomes a dead
	// letter. Defaults to 20.
	MaxAttempts int

	// Backoff is how long a message waits after its nth failed attempt, from
	// 1. It must be a pure function; a jitter of a fifth is added. Defaults to
	// Exponential(time.Second, 5*time.Minute), which with the default of
	// MaxAttempts gives up after about an hour.
	Backoff func(attempt int) time.Duration

	// AfterDead says whether the successors of a dead letter are sent.
	// Defaults to SendSuccessors.
	AfterDead AfterDead

	// Destination names the broker, or whatever the publisher sends to. All
	// instances of one outbox must have the same destination: while one is at
	// work, Run of one with another returns ErrOtherDestination, or each broker
	// would get a part of the messages. When nobody else is at work, Run goes on
	// and logs the change.
	//
	// The name is stored in the table of the forwarders and logged, so it must
	// hold no credentials; at most 1,000 bytes. Defaults to what the publisher's
	// method Destination() string returns. That of package rabbit names host,
	// port, virtual host, and how a topic becomes an exchange and a routing key;
	// a publisher that wraps it should pass the method on. Set Destination if
	// instances reach one broker under different names, or different brokers
	// under one name such as "localhost".
	//
	// A publisher without the method has an unknown destination. That is the same
	// as no other: instances that all have an unknown one run together, and none
	// runs beside one whose destination is known.
	Destination string

	// KeepSent is how long messages that were sent stay in the sent log, see
	// deadletter.SentLog: at least a minute. Defaults to 0, which keeps none.
	KeepSent time.Duration

	// Classify says what an error of the publisher means. Defaults to
	// [Classify].
	Classify func(err error) Outcome

	// CloseTimeout is how long Close waits for answers of the publisher and for
	// the database, each. Defaults to 5 seconds.
	CloseTimeout time.Duration

	// Logger defaults to slog's default logger; watermill.NopLogger{} silences it.
	Logger watermill.LoggerAdapter

	// MeterProvider is where the instruments are made, TracerProvider the
	// spans. Default to OpenTelemetry's global ones, which do nothing until
	// others are set; that should be done before Run is called.
	MeterProvider  metric.MeterProvider
	TracerProvider trace.TracerProvider

	// Topics are those that counters tell apart; all others are "other". By
	// default counters do not tell of topics, of which there may be any number.
	Topics []string
}

func (c Config) withDefaults() Config {
	c.Schema = c.Schema.WithDefaults()
	c.BatchSize = cmp.Or(c.BatchSize, 1000)
	c.Window = cmp.Or(c.Window, 1024)
	c.BufferBytes = cmp.Or(c.BufferBytes, 64<<20)
	c.Workers = cmp.Or(c.Workers, 16)
	c.PollMin = cmp.Or(c.PollMin, 5*time.Millisecond)
	c.PollMax = cmp.Or(c.PollMax, max(250*time.Millisecond, c.PollMin))
	c.StallTimeout = cmp.Or(c.StallTimeout, 10*time.Second)
	c.Lease = cmp.Or(c.Lease, 15*time.Second)
	c.MaxAttempts = cmp.Or(c.MaxAttempts, 20)
	c.CloseTimeout = cmp.Or(c.CloseTimeout, 5*time.Second)
	if c.Backoff == nil {
		c.Backoff = Exponential(time.Second, 5*time.Minute)
	}
	if c.Classify == nil {
		c.Classify = Classify
	}
	if c.Logger == nil {
		c.Logger = watermill.NewSlogLogger(nil)
	}
	return c
}

func (c Config) validate() error {
	errs := []error{c.Schema.Validate()}
	for _, field := range []struct {
		name        string
		value, most int
	}{
		{"BatchSize", c.BatchSize, 100_000},
		{"Window", c.Window, 100_000},
		{"BufferBytes", c.BufferBytes, 1 << 40},
		{"Workers", c.Workers, 10_000},
		{"MaxAttempts", c.MaxAttempts, 1_000_000},
	} {
		if field.value < 1 || field.value > field.most {
			errs = append(errs, fmt.Errorf("%s is %d, not in 1..%d", field.name, field.value, field.most))
		}
	}
	for _, field := range []struct {
		name         string
		value, least time.Duration
	}{
		{"PollMin", c.PollMin, time.Millisecond},
		{"PollMax", c.PollMax, c.PollMin},
		{"StallTimeout", c.StallTimeout, 10 * time.Millisecond},
		{"Lease", c.Lease, 500 * time.Millisecond},
		{"CloseTimeout", c.CloseTimeout, time.Millisecond},
	} {
		if field.value < field.least {
			errs = append(errs, fmt.Errorf("%s is %v: less than %v", field.name, field.value, field.least))
		}
	}
	if c.KeepSent != 0 && c.KeepSent < time.Minute {
		errs = append(errs, fmt.Errorf("KeepSent is %v: neither 0 nor at least %v", c.KeepSent, time.Minute))
	}
	if c.AfterDead != SendSuccessors && c.AfterDead != BlockKey {
		errs = append(errs, fmt.Errorf("AfterDead is %d, neither SendSuccessors nor BlockKey", c.AfterDead))
	}
	return errors.Join(errs...)
}
