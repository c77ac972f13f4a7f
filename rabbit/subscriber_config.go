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

// SubscriberConfig configures a Subscriber, in addition to watermill-amqp's Config. The
// zero value is ready for production use.
type SubscriberConfig struct {
	// InFlight is the maximum number of messages of one subscription that are handled at
	// the same time, from 1 to 65535. Set it to 1 if handlers need the messages in the
	// order of the queue. Defaults to 4 per CPU. For a handler that once.Consumer calls in
	// batches, it defaults to enough messages for full batches: 200 with the default
	// dedup.Batch. For a durable consumer, it defaults to 200. In these two cases the
	// prefetch count is equal to InFlight. Set a lower InFlight if so many messages need
	// too much memory.
	//
	// In all other cases, the prefetch count is twice InFlight, so that a free handler can
	// start with the next message immediately. If InFlight is 1, the prefetch count is 1,
	// so that the next message cannot overtake a message that is given back. But if
	// Consume.Qos.PrefetchCount is above 1, the prefetch count is always the larger of
	// PrefetchCount and InFlight. watermill-amqp's constructors set PrefetchCount to 1.
	InFlight int

	// NackMin and NackMax limit the pause before a nacked message returns to its queue. The
	// pause starts at NackMin. It doubles each time the message returns, up to NackMax,
	// with jitter. During the pause the message counts as in flight. NackMin defaults to
	// 100 ms, and NackMax to 10 s.
	NackMin, NackMax time.Duration

	// LongestUnackedWait is the longest time that you expect a message to wait for its ack,
	// because of the slowest handler, or because of the UnackedWait of retry, poison or
	// durable. The Subscriber uses it only for a check: when a subscription begins, the
	// Subscriber compares this time with the consumer timeout of the queue, and logs an
	// error if the timeout is too short. A prefetched message first waits for the messages
	// in flight, so with the default prefetch count it can be unacked for twice this time.
	// Defaults to 10 minutes, the default of UnackedWait.
	LongestUnackedWait time.Duration

	// ReadyTimeout is how long Subscribe waits for a connection before it continues in the
	// background. The time does not start with Subscribe, but when the connection was
	// lost, or with NewSubscriber. Defaults to 5 s.
	ReadyTimeout time.Duration

	// CloseTimeout is how long a subscription waits for the messages in flight when Close
	// is called or its context ends. Defaults to 10 s.
	CloseTimeout time.Duration

	// DialTimeout limits the time for opening a connection: name resolution, TCP, TLS and
	// AMQP together. It is also how long Subscribe waits until the broker has set up a
	// subscription, and how long a subscription that ends waits for the broker's reply. If
	// the broker takes longer, the subscription continues or ends in the background. A Dial
	// function in Connection.AmqpConfig needs its own timeout. Defaults to the
	// connection_timeout of the URI. If the URI has none, it defaults to 10 s.
	DialTimeout time.Duration

	// WriteTimeout is how long a write to the network may make no progress. After this
	// time, the connection is closed. Defaults to 10 s.
	WriteTimeout time.Duration

	// ReconnectMin and ReconnectMax limit the pause between attempts to connect, and
	// between attempts to consume. The pause doubles from ReconnectMin to ReconnectMax,
	// with jitter. Before the first attempt after a loss there is no pause. ReconnectMin
	// and ReconnectMax default to the initial and the maximal interval in
	// Connection.Reconnect. If Connection.Reconnect is not set, they default to 100 ms and
	// 10 s.
	ReconnectMin, ReconnectMax time.Duration

	// Logger receives a line for every change of state (connected, lost, a consumer that
	// the broker cancelled), and for each message that cannot be decoded. It receives no
	// credentials. Defaults to slog's default logger. To log nothing, set
	// watermill.NopLogger{}.
	Logger watermill.LoggerAdapter

	// MeterProvider creates the metrics. Defaults to OpenTelemetry's global provider,
	// which does nothing until you set another provider.
	MeterProvider metric.MeterProvider

	automatic bool // whether InFlight has its default value
	gathers   bool // whether InFlight is the number of messages that the handler's batches need
}

// withDefaults returns both configurations with default values in place of zero values.
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

	times := connectionTimes{
		dial: cfg.DialTimeout, write: cfg.WriteTimeout, reconnectMin: cfg.ReconnectMin, reconnectMax: cfg.ReconnectMax,
	}.withDefaults(config.Connection)
	cfg.DialTimeout, cfg.WriteTimeout = times.dial, times.write
	cfg.ReconnectMin, cfg.ReconnectMax = times.reconnectMin, times.reconnectMax
	cfg.automatic = cfg.InFlight == 0
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

// gathering returns the configuration for a handler with batches. The parameter
// messages is the number of messages in flight that full batches need.
func (cfg SubscriberConfig) gathering(messages int) SubscriberConfig {
	if cfg.automatic && messages > cfg.InFlight {
		cfg.InFlight, cfg.gathers = min(messages, math.MaxUint16), true
	}
	return cfg
}

// InFlight returns [SubscriberConfig].InFlight or its default. The result automatic is
// true for the default. For a handler with batches, a subscription uses a higher number
// than the default.
func (s *Subscriber) InFlight() (limit int, automatic bool) { return s.cfg.InFlight, s.cfg.automatic }

// prefetch returns the prefetch count of a subscription. The parameter configured is
// the PrefetchCount in watermill-amqp's config.
func (cfg SubscriberConfig) prefetch(configured int) int {
	switch {
	case configured > 1:
		return max(cfg.InFlight, configured)
	case cfg.InFlight == 1:
		return 1
	case cfg.gathers: // no extra messages, because the next batch is in flight already
		return cfg.InFlight
	default:
		return min(2*cfg.InFlight, math.MaxUint16)
	}
}

// longestUnacked returns how long a message may be unacked. A message first waits for
// the messages that were prefetched before it, and is then in flight itself.
func (cfg SubscriberConfig) longestUnacked(prefetch int) time.Duration {
	rounds := (prefetch + cfg.InFlight - 1) / cfg.InFlight
	if cfg.LongestUnackedWait > math.MaxInt64/time.Duration(rounds) {
		return math.MaxInt64
	}
	return time.Duration(rounds) * cfg.LongestUnackedWait
}

// validate returns an error that names every invalid field.
func (cfg SubscriberConfig) validate(config amqp.Config) error {
	errs := configErrors{validateConnection(config.Connection)}
	errs.requiref(config.Queue.GenerateName != nil, "Queue.GenerateName is nil")
	errs.requiref(config.Exchange.GenerateName != nil, "Exchange.GenerateName is nil")
	prefetch := config.Consume.Qos
	errs.requiref(prefetch.PrefetchCount >= 0 && prefetch.PrefetchCount <= math.MaxUint16,
		"Consume.Qos.PrefetchCount is %d; it must be in 0..%d", prefetch.PrefetchCount, math.MaxUint16)
	errs.requiref(prefetch.PrefetchSize == 0,
		"Consume.Qos.PrefetchSize is %d, which RabbitMQ does not support; set it to 0", prefetch.PrefetchSize)
	errs.requiref(cfg.InFlight > 0 && cfg.InFlight <= math.MaxUint16,
		"InFlight is %d; it must be in 1..%d", cfg.InFlight, math.MaxUint16)
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
		errs.requirePositive(d)
	}
	errs.requiref(cfg.NackMin <= cfg.NackMax, "NackMin is %v; it must not exceed NackMax, %v", cfg.NackMin, cfg.NackMax)
	errs.requiref(cfg.ReconnectMin <= cfg.ReconnectMax,
		"ReconnectMin is %v; it must not exceed ReconnectMax, %v", cfg.ReconnectMin, cfg.ReconnectMax)
	return errors.Join(errs...)
}
