package rabbit

import (
	"cmp"
	"errors"
	"math"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/rabbitmq/amqp091-go"
	"go.opentelemetry.io/otel/metric"
)

// SubscriberConfig configures a Subscriber, in addition to watermill-amqp's Config. The zero value
// is ready for production use.
//
// The pause between attempts to connect or consume doubles, with jitter, from
// BackoffInitialInterval to BackoffMaxInterval of Connection.Reconnect in watermill-amqp's Config,
// by default 100 ms and 10 s. There is none before the first attempt after a loss.
type SubscriberConfig struct {
	// InFlight is the maximum number of messages of one subscription that are handled at the same
	// time, from 1 to 65535. Set it to 1 if handlers need the messages in the order of the queue.
	// Defaults to 4 per CPU. For a handler that once.Consumer calls in batches, it defaults to
	// enough for full batches (200 with the default dedup.Batch), and for a durable consumer to
	// 200; then the prefetch count is equal to InFlight. Set a lower one if so many messages need
	// too much memory.
	//
	// Otherwise the prefetch count is twice InFlight, so that a free handler has the next message
	// at once, or 1 if InFlight is 1, so that no message overtakes one that is given back. If
	// Consume.Qos.PrefetchCount is above 1, the prefetch count is always the larger of it and
	// InFlight. watermill-amqp's constructors set it to 1.
	InFlight int

	// NackMin and NackMax limit the pause before a nacked message returns to its queue. It doubles
	// each time, with jitter, and meanwhile the message counts as in flight. Default to 100 ms and
	// 10 s.
	NackMin, NackMax time.Duration

	// ReadyTimeout is how long Subscribe waits for a connection before it continues in the
	// background, from the loss of the last one, or from NewSubscriber. Defaults to 5 s.
	ReadyTimeout time.Duration

	// CloseTimeout is how long a subscription waits for messages in flight after Close or the end
	// of its context. Defaults to 10 s.
	CloseTimeout time.Duration

	// Nodes are the nodes of a cluster, see [PublisherConfig].Nodes. The Subscriber tries another
	// node when the connection is lost, or when the node replies to no subscription within
	// DialTimeout. While a node delivers nothing, the Subscriber checks twice a minute whether the
	// node still replies to a subscription, because a node that is separated from the others keeps
	// its connections.
	Nodes []string

	// DialTimeout limits opening a connection (name resolution, TCP, TLS and AMQP together), and
	// the wait for the broker's reply at the begin and the end of a subscription, which then
	// continues or ends in the background. A Dial function in Connection.AmqpConfig needs its own
	// timeout. Defaults to the connection_timeout of the URI, or 10 s.
	DialTimeout time.Duration

	// WriteTimeout limits a write without progress, which closes the connection. Defaults to 10 s.
	WriteTimeout time.Duration

	// Logger receives a line for every change of state (connected, lost, a consumer that the broker
	// cancelled), and for each undecodable message, and no credentials. Defaults to slog's default
	// logger. Set watermill.NopLogger{} to log nothing.
	Logger watermill.LoggerAdapter

	// MeterProvider creates the metrics. Defaults to OpenTelemetry's global provider.
	MeterProvider metric.MeterProvider

	reconnectMin, reconnectMax time.Duration // limit the pause between attempts to connect, and between attempts to consume

	checkInterval time.Duration // see checkQuietNode

	automatic bool // whether InFlight has its default value
	gathers   bool // whether InFlight is the number of messages that the handler's batches need
}

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

	times := connectionTimes{dial: cfg.DialTimeout, write: cfg.WriteTimeout}.withDefaults(config.Connection)
	cfg.DialTimeout, cfg.WriteTimeout = times.dial, times.write
	cfg.reconnectMin, cfg.reconnectMax = times.reconnectMin, times.reconnectMax
	cfg.checkInterval = cmp.Or(cfg.checkInterval, 15*time.Second)
	cfg.automatic = cfg.InFlight == 0
	cfg.InFlight = cmp.Or(cfg.InFlight, 4*runtime.GOMAXPROCS(0))
	cfg.NackMin = cmp.Or(cfg.NackMin, 100*time.Millisecond)
	cfg.NackMax = cmp.Or(cfg.NackMax, max(10*time.Second, cfg.NackMin))
	cfg.ReadyTimeout = cmp.Or(cfg.ReadyTimeout, 5*time.Second)
	cfg.CloseTimeout = cmp.Or(cfg.CloseTimeout, 10*time.Second)
	if cfg.Logger == nil {
		cfg.Logger = watermill.NewSlogLogger(nil)
	}
	return config, cfg
}

// messages is the number of messages in flight that full batches need.
func (cfg SubscriberConfig) gathering(messages int) SubscriberConfig {
	if cfg.automatic && messages > cfg.InFlight {
		cfg.InFlight, cfg.gathers = min(messages, math.MaxUint16), true
	}
	return cfg
}

// InFlight returns [SubscriberConfig].InFlight or its default, which is automatic. A handler with
// batches may have more.
func (s *Subscriber) InFlight() (limit int, automatic bool) { return s.cfg.InFlight, s.cfg.automatic }

// configured is the PrefetchCount in watermill-amqp's config.
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

// A message waits for those that were prefetched before it, and is then in flight itself.
func (cfg SubscriberConfig) longestUnacked(prefetch int) time.Duration {
	rounds := (prefetch + cfg.InFlight - 1) / cfg.InFlight
	return time.Duration(rounds) * longestUnackedWait
}

func (cfg SubscriberConfig) validate(config amqp.Config) error {
	errs := configErrors{validateConnection(config.Connection)}
	errs.requireNodes(cfg.Nodes)
	errs.requiref(config.Queue.GenerateName != nil, "Queue.GenerateName is nil")
	errs.requiref(config.Exchange.GenerateName != nil, "Exchange.GenerateName is nil")
	errs.requiref(config.Queue.Arguments[amqp091.QueueTypeArg] != amqp091.QueueTypeStream, "Queue.Arguments: %w", errStream)
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
		{"ReadyTimeout", cfg.ReadyTimeout},
		{"CloseTimeout", cfg.CloseTimeout},
		{"DialTimeout", cfg.DialTimeout},
		{"WriteTimeout", cfg.WriteTimeout},
		{"Connection.Reconnect.BackoffInitialInterval", cfg.reconnectMin},
		{"Connection.Reconnect.BackoffMaxInterval", cfg.reconnectMax},
	} {
		errs.requirePositive(d)
	}
	errs.requiref(cfg.NackMin <= cfg.NackMax, "NackMin is %v; it must not exceed NackMax, %v", cfg.NackMin, cfg.NackMax)
	errs.requiref(cfg.reconnectMin <= cfg.reconnectMax,
		"Connection.Reconnect.BackoffInitialInterval is %v; it must not exceed BackoffMaxInterval, %v", cfg.reconnectMin, cfg.reconnectMax)
	return errors.Join(errs...)
}

var (
	errDrops   = errors.New("the queue has a delivery limit and no dead-letter exchange")
	errTooSoon = errors.New("the consumer timeout must be longer than UnackedWait of retry, poison and durable, " +
		"10 minutes by default, for a message in flight and for the prefetched messages that wait for it")
)

// longestUnackedWait is the default of UnackedWait in packages retry, poison and durable.
const longestUnackedWait = 10 * time.Minute

// Defaults of RabbitMQ.
const (
	defaultDeliveryLimit   = 20 // of quorum queues, since RabbitMQ 4.0
	defaultConsumerTimeout = 30 * time.Minute
)

// logLimits logs the delivery limit of the queue, and a consumer timeout that is too short: the
// broker can then remove messages before retry and poison have handled them. AMQP does not show
// limits of policies and of the broker's configuration.
func (sub *subscription) logLimits(c *connection) {
	config, logger := sub.s.config, sub.s.cfg.Logger
	queue := sub.arguments
	major, minor := brokerVersion(c.amqp.Properties)
	if limit, limited := deliveryLimit(queue, major); limited {
		fields := sub.fields().Add(watermill.LogFields{"delivery_limit": limit, "nacks_count": nacksCount(major, minor)})
		if queue["x-dead-letter-exchange"] == nil {
			logger.Error("Queue limit drops messages that are delivered too often; "+
				"set x-delivery-limit to -1 in Queue.Arguments, or for a queue that exists: "+
				`rabbitmqctl set_policy no-limit '^QUEUE$' '{"delivery-limit":-1}' --apply-to queues`, errDrops, fields)
		} else {
			logger.Info("Queue limit dead-letters messages that are delivered too often", fields)
		}
	}
	unacked := sub.cfg.longestUnacked(sub.cfg.prefetch(config.Consume.Qos.PrefetchCount))
	if timeout := consumerTimeout(config.Consume.Arguments, queue); timeout <= unacked {
		logger.Error("Consumer timeout of the broker is too short", errTooSoon,
			sub.fields().Add(watermill.LogFields{"consumer_timeout": timeout, "longest_unacked": unacked}))
	}
}

// deliveryLimit depends on the arguments of the queue, and on the broker's major version.
func deliveryLimit(queue amqp091.Table, major int) (limit int64, limited bool) {
	if queue[amqp091.QueueTypeArg] != amqp091.QueueTypeQuorum {
		return 0, false
	}
	limit, configured := integer(queue["x-delivery-limit"])
	switch {
	case configured:
		return limit, limit >= 0 // -1 means no limit
	case major >= 4:
		return defaultDeliveryLimit, true
	}
	return 0, false
}

func nacksCount(major, minor int) bool { return major < 4 || major == 4 && minor < 3 }

// The first table with x-consumer-timeout counts.
func consumerTimeout(tables ...amqp091.Table) time.Duration {
	for _, args := range tables {
		if ms, configured := integer(args["x-consumer-timeout"]); configured {
			return time.Duration(ms) * time.Millisecond
		}
	}
	return defaultConsumerTimeout
}

func brokerVersion(properties amqp091.Table) (major, minor int) {
	version, _ := properties["version"].(string)
	first, rest, _ := strings.Cut(version, ".")
	second, _, _ := strings.Cut(rest, ".")
	major, _ = strconv.Atoi(first)
	minor, _ = strconv.Atoi(second)
	return major, minor
}
