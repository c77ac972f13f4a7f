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

// AfterDead configures what happens to the successors of a dead letter that has
// an ordering key.
type AfterDead int

const (
	// SendSuccessors sends them, so that a hopeless message does not stop its key for ever.
	SendSuccessors AfterDead = iota

	// BlockKey lets them wait until the dead letter is replayed and confirmed,
	// is discarded, or its key is released: see package deadletter.
	BlockKey
)

// Config configures a [Forwarder]. The zero value is ready for production use.
type Config struct {
	// Schema names the tables and the kind of database. Defaults to PostgreSQL
	// and the prefix "once_".
	Schema schema.Config

	// BatchSize is the largest number of messages that one query reads.
	// Defaults to 1,000.
	BatchSize int

	// Window is the largest number of messages that are published and have no
	// outcome yet. A larger window makes forwarding faster, and sends more
	// messages again when the connection to the broker is lost. Defaults to
	// 1,024.
	Window int

	// BufferBytes bounds the payloads and metadata in memory, within the size
	// of one message. Defaults to 64 MiB.
	BufferBytes int

	// Workers is the number of goroutines that call Publish of a publisher
	// that is not an [AsyncPublisher]. Defaults to 16.
	Workers int

	// PollMin and PollMax bound the pause between two queries. The pause is a
	// quarter of the time since the last message was found. A Hint ends it.
	// Default to 5 ms and 250 ms.
	PollMin, PollMax time.Duration

	// StallTimeout is how long a topic may have messages in flight without any
	// outcome. After that its messages are not read and sent any more, so that a
	// queue that does not confirm does not stop others. Set it higher than the
	// time for which the publisher waits for a lost connection (5 seconds in
	// package rabbit), or every topic stalls then. Defaults to 10 seconds.
	StallTimeout time.Duration

	// Lease is how long this instance may be without the database before another
	// instance takes over. It is renewed three times in this time. Defaults to
	// 15 seconds.
	Lease time.Duration

	// MaxAttempts is the number of refusals after which a message becomes a dead
	// letter. Defaults to 20.
	MaxAttempts int

	// Backoff returns how long a message waits after its nth failed attempt, from
	// 1. It must be a pure function. The forwarder adds a jitter of a fifth.
	// Defaults to Exponential(time.Second, 5*time.Minute), which gives up after
	// about an hour with the default of MaxAttempts.
	Backoff func(attempt int) time.Duration

	// AfterDead decides whether the successors of a dead letter are sent.
	// Defaults to SendSuccessors.
	AfterDead AfterDead

	// Destination names the broker, or any other place that the publisher sends
	// to. All instances of one outbox must have the same destination, or each
	// broker would get a part of the messages. While an instance runs, Run of an
	// instance with another destination returns ErrOtherDestination. If no other
	// instance runs, Run continues and logs the change.
	//
	// The name is stored in the table of the forwarders and logged, so it must
	// contain no credentials. It has at most 1,000 bytes. Defaults to the result
	// of the publisher's method Destination() string. The method of package
	// rabbit names host, port, virtual host, and how a topic becomes an exchange
	// and a routing key. A publisher that wraps it should have the method too. Set
	// Destination if instances reach one broker under different names, or
	// different brokers under one name such as "localhost".
	//
	// A publisher without the method has an unknown destination, which differs
	// from every known one. Instances with an unknown destination run together,
	// but not beside an instance whose destination is known.
	Destination string

	// KeepSent is how long messages that were sent stay in the sent log, see
	// deadletter.SentLog: at least a minute. Defaults to 0, which keeps none.
	KeepSent time.Duration

	// Classify returns the outcome that an error of the publisher means. Defaults
	// to [Classify].
	Classify func(err error) Outcome

	// CloseTimeout is how long Close waits for confirms, and then for the
	// database. Defaults to 5 seconds for each.
	CloseTimeout time.Duration

	// Logger defaults to slog's default logger; watermill.NopLogger{} silences it.
	Logger watermill.LoggerAdapter

	// MeterProvider creates the metrics, TracerProvider the spans. Default to
	// OpenTelemetry's global providers, which do nothing until you set others.
	// Set them before you call Run.
	MeterProvider  metric.MeterProvider
	TracerProvider trace.TracerProvider

	// Topics get their own series in the counters; all other topics are
	// "other". Defaults to none, because the number of topics is not bounded:
	// the counters have no topics then.
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
