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

	"github.com/watermill-once/once/schema"
)

// Config is what [Retries] can be told. The zero value is ready for use.
type Config struct {
	// Schema says which tables, in which kind of database. Defaults to
	// PostgreSQL and the prefix "once_".
	Schema schema.Config

	// Policy says how often and when to try again. Its zero value is a good
	// default too.
	Policy Policy

	// Classes are kinds of errors with policies of their own. The first whose
	// Match says yes counts, and Policy where none does. A message has one
	// count of rounds: the policy of its latest error says whether that was the
	// last. Defaults to none.
	Classes []Class

	// KeyOrder says whether messages of one ordering key are handled one after
	// another, in the order in which they arrive. Such messages are stored and
	// acked before they are handled; one instance is to receive them, and any
	// number may handle them. Defaults to Unordered.
	KeyOrder KeyOrder

	// CrashBudget is how many times the process may end while the handler of
	// a parked message runs, before the message is given up without being run
	// again. Defaults to 3.
	CrashBudget int

	// Lease is how long a parked message belongs to the process that claimed
	// it; it is renewed while the handler runs. After a crash the message is
	// tried again when the lease is over. Nothing is begun that late, so it is to
	// be many times what a claim takes: at least 500 ms. Defaults to 30 seconds.
	Lease time.Duration

	// PollInterval is how often each subscription looks for parked messages
	// that have become due. Defaults to 500 ms.
	PollInterval time.Duration

	// Concurrency is how many parked messages are handled at once, besides
	// those of the transport. It is per subscription: ten of them handle ten
	// times as many. Every handler in flight holds a connection to the database;
	// with a pool that has fewer, claims and the renewal of leases have to wait
	// for one. With KeyOrder four more are claimed for each of them. Defaults to 4
	// per CPU; with SQLite, which has one writer, to 1.
	Concurrency int

	// BufferBytes bounds the parked messages in memory of each subscription,
	// within the size of one message: of large ones fewer than Concurrency are
	// handled at once. Defaults to 64 MiB.
	BufferBytes int

	// ShareConsumer says that several subscriptions of this process may use one
	// consumer name for one topic: the same handler, added more than once to have
	// more messages in flight. Of different handlers each would skip what another
	// has done. Defaults to false: the second Subscribe is [ErrConsumerInUse].
	ShareConsumer bool

	// UnackedWait is how long a message is kept, neither acked nor nacked, while the
	// consumer's database cannot be reached; then it is handed back to the
	// transport. It must be shorter than the broker's consumer timeout
	// (RabbitMQ: 30 minutes), and than half of it where as many messages wait
	// at hand as are in flight. Defaults to 10 minutes.
	UnackedWait time.Duration

	// CloseTimeout is how long Close of a Subscriber waits for the answers to
	// messages that were handed out. Those that have none by then are due again
	// when a lease is over, with nothing charged. Defaults to 10 seconds, as
	// rabbit.SubscriberConfig's, which runs at the same time.
	CloseTimeout time.Duration

	// Logger defaults to slog's default logger; watermill.NopLogger{} silences it.
	Logger watermill.LoggerAdapter

	// MeterProvider is where the instruments are made, TracerProvider the
	// spans. Default to OpenTelemetry's global ones, which do nothing until
	// others are set.
	MeterProvider  metric.MeterProvider
	TracerProvider trace.TracerProvider
}

// Class is a kind of errors with a policy of its own.
type Class struct {
	// Match says whether an error that the handler returned is one of them;
	// errors.Is and errors.As see through what wraps it. It is required.
	Match func(err error) bool

	// Policy is for these errors. Its zero value is the default policy, not
	// that of the Config.
	Policy Policy
}

// LongestDelay returns how long a message may be tried at most, the time that
// its handler takes and [After] left out: the sum of the delays of the policy
// for which that is the longest. The inbox must remember messages for longer.
func (c Config) LongestDelay() time.Duration {
	c = c.withDefaults()
	longest := c.Policy.total()
	for _, class := range c.Classes {
		longest = max(longest, class.Policy.total())
	}
	return longest
}

func (c Config) withDefaults() Config {
	c.Schema = c.Schema.WithDefaults()
	c.Policy = c.Policy.withDefaults()
	c.Classes = slices.Clone(c.Classes)
	for i := range c.Classes {
		c.Classes[i].Policy = c.Classes[i].Policy.withDefaults()
	}
	c.CrashBudget = cmp.Or(c.CrashBudget, 3)
	c.Lease = cmp.Or(c.Lease, 30*time.Second)
	c.PollInterval = cmp.Or(c.PollInterval, 500*time.Millisecond)
	if c.Concurrency == 0 {
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
	errs := []error{c.Schema.Validate(), c.Policy.validate("Policy")}
	for i, class := range c.Classes {
		name := fmt.Sprintf("Classes[%d].", i)
		if class.Match == nil {
			errs = append(errs, errors.New(name+"Match is nil"))
		}
		errs = append(errs, class.Policy.validate(name+"Policy"))
	}
	if c.KeyOrder < Unordered || c.KeyOrder > BlockWhileRunning {
		errs = append(errs, fmt.Errorf("KeyOrder is %d, none of Unordered, BlockWhileRetried, BlockWhileQuarantined, BlockWhileRunning", c.KeyOrder))
	}
	if c.CrashBudget < 0 {
		errs = append(errs, fmt.Errorf("CrashBudget is %d: negative", c.CrashBudget))
	}
	if c.Concurrency < 0 {
		errs = append(errs, fmt.Errorf("Concurrency is %d: negative", c.Concurrency))
	}
	if most := 1 << 40; c.BufferBytes < 1 || c.BufferBytes > most {
		errs = append(errs, fmt.Errorf("BufferBytes is %d, not in 1..%d", c.BufferBytes, most))
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
