package retry

import (
	"cmp"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/watermill-once/once/internal/parkedrows"
	"github.com/watermill-once/once/schema"
)

// Config configures [Retries]. The zero value is ready for use.
type Config struct {
	// Schema contains the prefix of the tables and the kind of database. Defaults to PostgreSQL and
	// "once_".
	Schema schema.Config

	// Policy determines how often and when to retry. Its zero value is the default policy.
	Policy Policy

	// Classes are classes of errors, each with its own policy: the first class that matches an
	// error determines the policy, or Policy if none does. The rounds of a message are counted
	// together for all classes. The policy of the latest error decides whether another round
	// follows. Defaults to none.
	Classes []Class

	// Breaker pauses the consumer while the service that its handler calls is down. &Breaker{} has
	// the defaults. It needs [Retries.Subscriber]. Defaults to nil: there is no breaker.
	Breaker *Breaker

	// Limits limits how many messages start per second, in all instances together. An operator can
	// set another limit at any time, see parked.Messages.LimitConsumer. It needs
	// [Retries.Subscriber]. Defaults to no limit.
	Limits Limits

	// KeyOrder determines whether messages with the same ordering key are handled one after
	// another, in the order of their arrival. Such messages are stored and acked before
	// they are handled. Only one instance may receive these messages, but any number of
	// instances may handle them. Defaults to Unordered.
	KeyOrder KeyOrder

	// CrashBudget is the number of crashes after which a parked message is given up on without
	// another call of its handler. A crash is a process that died while it ran the handler.
	// Defaults to 3.
	CrashBudget int

	// Lease is how long a process owns a parked message that it has claimed, unless it renews the
	// lease, as it does while the handler runs. If the process dies, the message is tried again
	// after the lease. No attempt begins after it, so the lease must be much longer than a claim
	// takes. At least 500 ms. Defaults to 30 seconds.
	Lease time.Duration

	// PollInterval is how often each subscription looks for due parked messages. Defaults
	// to 500 ms.
	PollInterval time.Duration

	// Concurrency is the number of parked messages that each subscription handles at the same time,
	// in addition to the messages of the transport. Each running handler needs a database
	// connection. With too few connections, claims and renewals of leases wait. With KeyOrder, each
	// subscription claims four more messages for each handler in advance. Defaults to 4 per CPU,
	// and to 1 with SQLite, which has only one writer. For a handler that once.Consumer calls in
	// batches, it defaults to enough messages for full batches; the messages of a batch share a
	// connection.
	Concurrency int

	// BufferBytes limits the memory that each subscription uses for claimed messages. A single
	// message may exceed the limit. With large messages, fewer messages may be handled at the same
	// time. Defaults to 64 MiB.
	BufferBytes int

	// ShareConsumer allows several subscriptions of this process to use the same consumer name and
	// topic: set it if you add the same handler more than once, for more messages in flight.
	// Different handlers must not share a name, because each would skip messages that the other has
	// handled. Defaults to false: the second Subscribe fails with [ErrConsumerInUse].
	ShareConsumer bool

	// UnackedWait is how long a message stays unacked while the consumer's database is unreachable,
	// before it is nacked and returns to the transport. It must be shorter than the broker's
	// consumer timeout (RabbitMQ: 30 minutes), or than half of it if the client prefetches as many
	// messages as are handled at the same time. Defaults to 10 minutes.
	UnackedWait time.Duration

	// CloseTimeout is how long Close of a Subscriber waits for the acks of messages that handlers
	// have received. A parked message without ack or nack is then due again after Lease, and no
	// attempt is counted. Defaults to 10 seconds, like rabbit.SubscriberConfig.CloseTimeout, which
	// runs at the same time.
	CloseTimeout time.Duration

	// Logger defaults to slog's default logger. Set watermill.NopLogger{} to log nothing.
	Logger watermill.LoggerAdapter

	// MeterProvider creates the metrics, and TracerProvider creates the spans. Both default to
	// OpenTelemetry's global providers.
	MeterProvider  metric.MeterProvider
	TracerProvider trace.TracerProvider

	automatic bool // whether Concurrency has its default value
}

// Class is a class of errors that has its own policy.
type Class struct {
	// Match reports whether an error of the handler belongs to the class. Use errors.Is or
	// errors.As: the error may be wrapped. Required.
	Match func(err error) bool

	// Policy is used for the errors of the class. If a field is zero, the value in
	// Config.Policy applies.
	Policy Policy
}

// LongestDelay returns the longest time for which a message may be retried: the largest sum of
// delays of the policies in c. It includes neither the handler's time nor delays set with [After].
// The inbox must remember messages for longer than this.
func (c Config) LongestDelay() time.Duration {
	return c.withDefaults().longestDelay()
}

func (c Config) longestDelay() time.Duration {
	longest := c.Policy.longestDelay()
	for _, class := range c.Classes {
		longest = max(longest, class.Policy.longestDelay())
	}
	return longest
}

func (c Config) withDefaults() Config {
	c.Schema = c.Schema.WithDefaults()
	c.Policy = c.Policy.or(Policy{Immediate: 2, Delayed: 5, Base: time.Second, Factor: 5, Max: time.Hour, Jitter: 0.2})
	c.Classes = slices.Clone(c.Classes)
	for i := range c.Classes {
		c.Classes[i].Policy = c.Classes[i].Policy.or(c.Policy)
	}
	if c.Breaker != nil {
		breaker := c.Breaker.withDefaults() // a copy: the caller's Config does not change
		c.Breaker = &breaker
	}
	c.Limits = c.Limits.withDefaults()
	c.CrashBudget = cmp.Or(c.CrashBudget, 3)
	c.Lease = cmp.Or(c.Lease, 30*time.Second)
	c.PollInterval = cmp.Or(c.PollInterval, 500*time.Millisecond)
	c.automatic = c.Concurrency == 0
	if c.automatic {
		c.Concurrency = 4 * runtime.GOMAXPROCS(0)
		if c.Schema.Dialect == schema.SQLite {
			c.Concurrency = 1
		}
	}
	c.BufferBytes = cmp.Or(c.BufferBytes, 64<<20)
	c.UnackedWait = cmp.Or(c.UnackedWait, 10*time.Minute)
	c.CloseTimeout = cmp.Or(c.CloseTimeout, 10*time.Second)
	if c.Logger == nil {
		c.Logger = watermill.NewSlogLogger(nil)
	}
	return c
}

func (c Config) validate() error {
	errs := []error{c.Policy.validate("Policy")}
	for i, class := range c.Classes {
		name := fmt.Sprintf("Classes[%d].", i)
		if class.Match == nil {
			errs = append(errs, errors.New(name+"Match is nil"))
		}
		errs = append(errs, class.Policy.validate(name+"Policy"))
	}
	if c.Breaker != nil {
		errs = append(errs, c.Breaker.validate(c.Policy))
	}
	errs = append(errs, c.Limits.validate())
	if c.KeyOrder < Unordered || c.KeyOrder > BlockWhileRunning {
		errs = append(errs, fmt.Errorf(
			"KeyOrder is %d: use Unordered, BlockWhileRetried, BlockWhileQuarantined or BlockWhileRunning", c.KeyOrder))
	}
	if c.CrashBudget < 0 {
		errs = append(errs, fmt.Errorf("CrashBudget is %d: negative", c.CrashBudget))
	}
	if c.Concurrency < 0 {
		errs = append(errs, fmt.Errorf("Concurrency is %d: negative", c.Concurrency))
	}
	if limit := 1 << 40; c.BufferBytes < 1 || c.BufferBytes > limit {
		errs = append(errs, fmt.Errorf("BufferBytes is %d, not in 1..%d", c.BufferBytes, limit))
	}
	if c.Lease < 500*time.Millisecond {
		errs = append(errs, fmt.Errorf("Lease is %v: less than 500 ms", c.Lease))
	}
	if c.PollInterval < time.Millisecond {
		errs = append(errs, fmt.Errorf("PollInterval is %v: less than 1 ms", c.PollInterval))
	}
	if c.UnackedWait < 0 {
		errs = append(errs, fmt.Errorf("UnackedWait is %v: negative", c.UnackedWait))
	}
	if c.CloseTimeout < 0 {
		errs = append(errs, fmt.Errorf("CloseTimeout is %v: negative", c.CloseTimeout))
	}
	return errors.Join(errs...)
}

// KeyOrder determines whether messages with the same ordering key are handled in order, and what
// happens to later messages of a key when one fails. The key is the metadata "once_ordering_key",
// which outbox and forwarder send with the message.
type KeyOrder int

const (
	// Unordered handles messages in any order.
	Unordered KeyOrder = KeyOrder(parkedrows.Unordered)

	// BlockWhileRetried handles the messages of a key one after another, in the order of their
	// arrival. Later messages wait while a failing message is retried, until the consumer gives up
	// on it.
	BlockWhileRetried KeyOrder = KeyOrder(parkedrows.BlockWhileRetried)

	// BlockWhileQuarantined is like BlockWhileRetried, but later messages also wait while the
	// failed message is in quarantine, until it is replayed and handled, or discarded.
	BlockWhileQuarantined KeyOrder = KeyOrder(parkedrows.BlockWhileQuarantined)

	// BlockWhileRunning is like BlockWhileRetried, but the later messages are handled
	// while the failed message waits for its next round.
	BlockWhileRunning KeyOrder = KeyOrder(parkedrows.BlockWhileRunning)
)
