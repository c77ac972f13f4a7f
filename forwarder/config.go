package forwarder

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/watermill-once/once/internal/backoff"
	"github.com/watermill-once/once/internal/usercode"
	"github.com/watermill-once/once/schema"
)

// AfterDead determines what happens to the later messages of an ordering key after one of its
// messages has become a dead letter.
type AfterDead int

const (
	// SendSuccessors sends them, so one that can never be sent does not block the key forever.
	SendSuccessors AfterDead = iota + 1

	// BlockKey makes them wait until the dead letter is replayed and confirmed, or discarded, or
	// its key is released. See package dead.
	BlockKey
)

// Policy configures how refused messages of a topic are tried again, see [Config.Policies].
type Policy struct {
	// The fields replace those of Config with the same names, unless they are zero. AfterDead
	// applies when a message of this topic becomes a dead letter, to all later messages of the key,
	// whatever their topics are.
	MaxAttempts int
	Backoff     func(attempt int) time.Duration
	AfterDead   AfterDead
}

// Config configures a [Forwarder]. The zero value is ready for production use.
type Config struct {
	// Schema selects the database and the prefix of the tables. Defaults to PostgreSQL and "once_".
	Schema schema.Config

	// BatchSize is the maximum number of messages that one query reads. Defaults to 1,000.
	BatchSize int

	// Window is the maximum number of published messages without an outcome. A larger window is
	// faster, but more messages are sent again when the connection to the broker is lost. Defaults
	// to 1,024.
	Window int

	// BufferBytes is the maximum size of all payloads and metadata in memory, in bytes. The last
	// message that is read may exceed the limit. With PostgreSQL, a quarter is reserved for
	// messages behind a long backlog of another tenant or topic. Defaults to 64 MiB.
	BufferBytes int

	// Workers is the number of goroutines that call Publish. An [AsyncPublisher] needs none. Defaults
	// to 16.
	Workers int

	// PollMin and PollMax limit the pause between two queries for messages: a quarter of the time
	// since the last message was found. Hint ends it early. Defaults to 5 ms and 250 ms.
	PollMin, PollMax time.Duration

	// StallTimeout is how long a topic may have messages in flight without any outcome. Then the
	// forwarder stops reading and sending its messages, so that a queue that does not confirm does
	// not stop other topics. It must be longer than the publisher waits for a lost connection (5
	// seconds in package rabbit); otherwise all topics stall when it is lost. Defaults to 10
	// seconds.
	StallTimeout time.Duration

	// Lease is how long this instance may have no contact with the database before another one
	// takes over. It is renewed three times in this period. Use the same value in all instances;
	// otherwise they may share the slots unevenly. Defaults to 15 seconds.
	Lease time.Duration

	// MaxAttempts is how many refusals make a message a dead letter. Defaults to 20.
	MaxAttempts int

	// Backoff returns how long a message waits after a failed attempt. attempt is 1 for the first
	// attempt of the message. Backoff must always return the same result for the same attempt. The
	// forwarder adds or subtracts up to a fifth at random. Defaults to Exponential(time.Second,
	// 5*time.Minute): with the default MaxAttempts, a message becomes a dead letter after about an
	// hour.
	Backoff func(attempt int) time.Duration

	// AfterDead decides whether the later messages of a key are sent after one message
	// of the key became a dead letter. Defaults to SendSuccessors.
	AfterDead AfterDead

	// Policies contains the policies of individual topics, which replace MaxAttempts, Backoff and
	// AfterDead. Defaults to none.
	Policies map[string]Policy

	// Destination is the name of the broker, or of another place to which the publisher sends. All
	// instances of one outbox must have the same destination; otherwise each broker would get only
	// a part of the messages. While an instance runs, Run of an instance with another destination
	// returns ErrOtherDestination. If none runs, Run continues and logs the change.
	//
	// The name is stored in the database and logged, so it must not contain credentials. It has at
	// most 1,000 bytes. Defaults to the result of the publisher's method Destination() string: in
	// package rabbit host, port, virtual host, and how a topic becomes an exchange and a routing
	// key. If you wrap such a publisher, give the wrapper the same method. Set Destination if
	// instances use different names for one broker, or the same name, such as "localhost", for
	// different ones.
	//
	// A publisher without this method has an unknown destination. Such instances can run together,
	// but not with one whose destination is known.
	Destination string

	// KeepSent is how long sent messages stay in the sent log, see dead.SentLog. It
	// must be at least a minute. Defaults to 0, which means that there is no sent log.
	KeepSent time.Duration

	// Classify returns the outcome that an error of the publisher means. nil always means
	// [Confirmed]. Defaults to the function [Classify].
	Classify func(err error) Outcome

	// CloseTimeout is how long Close waits for confirms, and then at most as long again for the
	// database. Defaults to 5 seconds.
	CloseTimeout time.Duration

	// Logger defaults to slog's default logger. Set watermill.NopLogger{} to log nothing.
	Logger watermill.LoggerAdapter

	// MeterProvider creates the metrics, and TracerProvider creates the spans. Both default to
	// OpenTelemetry's global providers. Set those before you call Run.
	MeterProvider  metric.MeterProvider
	TracerProvider trace.TracerProvider

	// Topics lists the topics with series of their own in the counters. All others are counted as
	// "other", because too many series would overload the metrics system. Defaults to none: the
	// counters are not divided by topic.
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
	c.AfterDead = cmp.Or(c.AfterDead, SendSuccessors)
	c.CloseTimeout = cmp.Or(c.CloseTimeout, 5*time.Second)
	if c.Backoff == nil {
		c.Backoff = defaultBackoff
	}
	if c.Classify == nil {
		c.Classify = Classify
	}
	if c.Logger == nil {
		c.Logger = watermill.NewSlogLogger(nil)
	}
	return c
}

func (c Config) policy(topic string) Policy {
	p := c.Policies[topic]
	p.AfterDead = cmp.Or(p.AfterDead, c.AfterDead)
	p.MaxAttempts = cmp.Or(p.MaxAttempts, c.MaxAttempts)
	if p.Backoff == nil {
		p.Backoff = c.Backoff
	}
	return p
}

func (c Config) validatePolicies() error {
	var errs []error
	for _, topic := range slices.Sorted(maps.Keys(c.Policies)) {
		p := c.Policies[topic]
		if topic == "" {
			errs = append(errs, errors.New(`Policies has the topic "": no message has it`))
		}
		if p.MaxAttempts < 0 || p.MaxAttempts > maxAttempts {
			errs = append(errs, fmt.Errorf("Policies[%q].MaxAttempts is %d, not in 1..%d", topic, p.MaxAttempts, maxAttempts))
		}
		if p.AfterDead < 0 || p.AfterDead > BlockKey {
			errs = append(errs, fmt.Errorf("Policies[%q].AfterDead is %d, neither SendSuccessors nor BlockKey", topic, p.AfterDead))
		}
	}
	return errors.Join(errs...)
}

const maxAttempts = 1_000_000

func (c Config) validate() error {
	errs := []error{c.Schema.Validate(), c.validatePolicies()}
	for _, field := range []struct {
		name        string
		value, most int
	}{
		{"BatchSize", c.BatchSize, 100_000},
		{"Window", c.Window, 100_000},
		{"BufferBytes", c.BufferBytes, 1 << 40},
		{"Workers", c.Workers, 10_000},
		{"MaxAttempts", c.MaxAttempts, maxAttempts},
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

// Exponential returns a function for Config.Backoff. first is the pause after the first failed
// attempt. It doubles after each further one, up to limit.
func Exponential(first, limit time.Duration) func(attempt int) time.Duration {
	delays := backoff.Exponential{Base: first, Max: limit}
	return func(attempt int) time.Duration { return delays.Delay(attempt, 0) }
}

// guarded returns the default if backoff, which is code of the user, panics.
func guarded(backoff func(attempt int) time.Duration, logger watermill.LoggerAdapter) func(attempt int) time.Duration {
	return func(attempt int) (delay time.Duration) {
		err := usercode.Run(func() error { delay = backoff(attempt); return nil })
		if err != nil {
			logger.Error("Backoff failed, the default is used", err, watermill.LogFields{"attempt": attempt, "stack": usercode.Stack(err)})
			return defaultBackoff(attempt)
		}
		return delay
	}
}

var defaultBackoff = Exponential(time.Second, 5*time.Minute)

// pauses are for failures that affect all messages, such as an outage of the broker.
var pauses = Exponential(50*time.Millisecond, 5*time.Second)

// jitter adds or subtracts up to a fifth, so that messages are not tried again together.
func jitter(d time.Duration) time.Duration {
	d = min(d, math.MaxInt64/2) // so that adding the jitter cannot overflow
	return d + time.Duration((rand.Float64()*2-1)*float64(d)/5)
}
