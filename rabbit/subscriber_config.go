package rabbit

import (
	"cmp"
	"errors"
	"math"
	"runtime"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"go.opentelemetry.io/otel/metric"
)

// SubscriberConfig is what a Subscriber needs beyond watermill-amqp's Config.
// The zero value is a good choice.
type SubscriberConfig struct {
	// InFlight is how many messages of one subscription may be handled at the
	// same time. 1 to 65535. Defaults to 4 per CPU. Handlers that must see
	// messages in the order of the queue need 1.
	//
	// The prefetch count is twice as many, so that a handler that is done finds
	// the next message at hand; with 1 in flight it is 1, or a message that is
	// given back would come after its successor. Consume.Qos.PrefetchCount is
	// used instead where it is over 1, which watermill-amqp's constructors set,
	// but never less than InFlight.
	InFlight int

	// NackMin and NackMax bound the pause before a nacked message is given back
	// to its queue. It doubles from one to the other with every time that the
	// message was given back, with jitter. Meanwhile the message stays in flight.
	// Default to 100 ms and 10 s.
	NackMin, NackMax time.Duration

	// LongestUnackedWait is how long a message is kept without an ack at the most, by
	// the slowest handler or by the UnackedWait of retry, poison or durable. It bounds
	// nothing: a subscription whose queue has a consumer timeout that is too
	// short says so when it begins. Messages at hand wait for those in flight
	// first, so with the default prefetch count a message can take twice as long.
	// Defaults to 10 minutes, as they do.
	LongestUnackedWait time.Duration

	// ReadyTimeout is how long Subscribe waits for a connection before it leaves
	// the rest to the background, counted from when there was none. Defaults to
	// 5 s.
	ReadyTimeout time.Duration

	// CloseTimeout is how long the end of a subscription, by Close or by its
	// context, waits for the messages in flight. Defaults to 10 s.
	CloseTimeout time.Duration

	// DialTimeout bounds everything that sets up a connection: name resolution,
	// TCP, TLS and AMQP together; and how long Subscribe waits for the broker to
	// set up a subscription on it, and the end of a subscription for the broker to
	// end it, which then go on in the background. A Dial function in
	// Connection.AmqpConfig has to bound itself. Defaults to the
	// connection_timeout of the URI, else to 10 s.
	DialTimeout time.Duration

	// WriteTimeout is how long a write to the network may make no progress
	// before the connection is given up. Defaults to 10 s.
	WriteTimeout time.Duration

	// ReconnectMin and ReconnectMax bound the pause between attempts to connect,
	// and to consume. It doubles from one to the other, with jitter; the first
	// attempt after a loss is made at once. Default to Connection.Reconnect's
	// initial and maximal interval where that is set, else to 100 ms and 10 s.
	ReconnectMin, ReconnectMax time.Duration

	// Logger hears of every change: connected, lost, a consumer that was
	// cancelled; and of each message that cannot be decoded. It hears no
	// credentials. Defaults to slog's default logger; watermill.NopLogger{}
	// silences it.
	Logger watermill.LoggerAdapter

	// MeterProvider is where the instruments are made. Defaults to
	// OpenTelemetry's global one, which does nothing until another is set.
	MeterProvider metric.MeterProvider
}

// withDefaults fills in both configs as the Subscriber uses them.
func (cfg SubscriberConfig) withDefaults(config amqp.Config) (amqp.Config, SubscriberConfig) {
	if config.Marshaler == nil {
		config.Marshaler = Marshaler{}
	}
	if config.TopologyBuilder == nil {
		config.TopologyBuilder = &amqp.DefaultTopologyBuilder{}
	}
	if config.QueueBind.GenerateRoutingKey == nil {
		config.QueueBind.GenerateRoutingKey = func(string) string { return "" }
	}

	connection := connectionDefaults(config.Connection, connectionTimes{
		dial: cfg.DialTimeout, write: cfg.WriteTimeout, low: cfg.ReconnectMin, high: cfg.ReconnectMax,
	})
	cfg.DialTimeout, cfg.WriteTimeout = connection.dial, connection.write
	cfg.ReconnectMin, cfg.ReconnectMax = connection.low, connection.high
	cfg.InFlight = cmp.Or(cfg.InFlight, 4*runtime.GOMAXPROCS(0))
	cfg.NackMin = cmp.Or(cfg.NackMin, 100*time.Millisecond)
	cfg.NackMax = cmp.Or(cfg.NackMax, max(10*time.Second, cfg.NackMin))
	cfg.LongestUnackedWait = cmp.Or(cfg.LongestUnackedWait, 10*time.Minute)
	cfg.ReadyTimeout = cmp.Or(cfg.ReadyTimeout, 5*time.Second)
	cfg.CloseTimeout = cmp.Or(cfg.CloseTimeout, 10*time.Second)
	if cfg.Logger == nil {
		cfg.Logger = watermill.NewSlogLogger(nil)
	}
	return config, cfg
}

// prefetch is how many messages the broker is to send ahead of acks. asked is
// what watermill-amqp's config says.
func (cfg SubscriberConfig) prefetch(asked int) int {
	switch {
	case asked > 1:
		return max(cfg.InFlight, asked)
	case cfg.InFlight == 1:
		return 1
	default:
		return min(2*cfg.InFlight, math.MaxUint16)
	}
}

// longestStay is how long a message can be without an ack: it waits for those
// before it that were sent ahead, and is then in flight itself.
func (cfg SubscriberConfig) longestStay(prefetch int) time.Duration {
	rounds := (prefetch + cfg.InFlight - 1) / cfg.InFlight
	if cfg.LongestUnackedWait > math.MaxInt64/time.Duration(rounds) {
		return math.MaxInt64
	}
	return time.Duration(rounds) * cfg.LongestUnackedWait
}

// validate names everything that is wrong, at once.
func (cfg SubscriberConfig) validate(config amqp.Config) error {
	c := checks{validateConnection(config.Connection)}
	c.checkf(config.Queue.GenerateName != nil, "Queue.GenerateName is nil")
	c.checkf(config.Exchange.GenerateName != nil, "Exchange.GenerateName is nil")
	prefetch := config.Consume.Qos
	c.checkf(prefetch.PrefetchCount >= 0 && prefetch.PrefetchCount <= math.MaxUint16,
		"Consume.Qos.PrefetchCount is %d, not in 0..%d", prefetch.PrefetchCount, math.MaxUint16)
	c.checkf(prefetch.PrefetchSize == 0, "Consume.Qos.PrefetchSize is not supported by RabbitMQ")
	c.checkf(cfg.InFlight > 0 && cfg.InFlight <= math.MaxUint16,
		"InFlight is %d, not in 1..%d", cfg.InFlight, math.MaxUint16)
	for _, d := range []duration{
		{"NackMin", cfg.NackMin},
		{"NackMax", cfg.NackMax},
		{"LongestUnackedWait", cfg.LongestUnackedWait},
		{"ReadyTimeout", cfg.ReadyTimeout},
		{"CloseTimeout", cfg.CloseTimeout},
		{"DialTimeout", cfg.DialTimeout},
		{"WriteTimeout", cfg.WriteTimeout},
		{"ReconnectMin", cfg.ReconnectMin},
		{"ReconnectMax", cfg.ReconnectMax},
	} {
		c.positive(d)
	}
	c.checkf(cfg.NackMin <= cfg.NackMax, "NackMin is %v: more than NackMax, %v", cfg.NackMin, cfg.NackMax)
	c.checkf(cfg.ReconnectMin <= cfg.ReconnectMax,
		"ReconnectMin is %v: more than ReconnectMax, %v", cfg.ReconnectMin, cfg.ReconnectMax)
	return errors.Join(c...)
}
