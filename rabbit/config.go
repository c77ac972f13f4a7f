package rabbit

import (
	"cmp"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/rabbitmq/amqp091-go"
	"go.opentelemetry.io/otel/metric"
)

type configErrors []error

func (e *configErrors) requiref(ok bool, format string, args ...any) {
	if !ok {
		*e = append(*e, fmt.Errorf("rabbit: "+format, args...))
	}
}

type duration struct {
	name  string
	value time.Duration
}

func (e *configErrors) requirePositive(d duration) {
	e.requiref(d.value > 0, "%s is %v; it must be positive", d.name, d.value)
}

type connectionTimes struct {
	dial, write, reconnectMin, reconnectMax time.Duration
}

func (t connectionTimes) withDefaults(config amqp.ConnectionConfig) connectionTimes {
	if reconnect := config.Reconnect; reconnect != nil {
		t.reconnectMin, t.reconnectMax = reconnect.BackoffInitialInterval, reconnect.BackoffMaxInterval
	}
	if uri, err := amqp091.ParseURI(config.AmqpURI); err == nil {
		t.dial = cmp.Or(t.dial, time.Duration(uri.ConnectionTimeout)*time.Millisecond)
	}
	t.dial = cmp.Or(t.dial, 10*time.Second)
	t.write = cmp.Or(t.write, 10*time.Second)
	t.reconnectMin = cmp.Or(t.reconnectMin, 100*time.Millisecond)
	t.reconnectMax = cmp.Or(t.reconnectMax, max(10*time.Second, t.reconnectMin))
	return t
}

func validateConnection(config amqp.ConnectionConfig) error {
	if config.AmqpURI == "" {
		return errors.New("rabbit: Connection.AmqpURI is empty")
	}
	var errs []error
	if _, err := amqp091.ParseURI(config.AmqpURI); err != nil || namesSeveralHosts(config.AmqpURI) {
		errs = append(errs, uriError(config.AmqpURI))
	}
	if config.TLSConfig != nil && config.AmqpConfig != nil && config.AmqpConfig.TLSClientConfig != nil {
		errs = append(errs, errors.New(
			"rabbit: Connection.TLSConfig and Connection.AmqpConfig.TLSClientConfig are both set; set only one"))
	}
	return errors.Join(errs...)
}

// uriError does not contain the error of the parser, which quotes the text that it cannot read: if
// a password contains a "#", the parser reads a part of it as the port.
func uriError(uri string) error {
	switch {
	case !strings.HasPrefix(uri, "amqp://") && !strings.HasPrefix(uri, "amqps://"):
		return errors.New("rabbit: Connection.AmqpURI must start with amqp:// or amqps://")
	case strings.ContainsAny(uri, " \t\r\n"):
		return errors.New("rabbit: Connection.AmqpURI contains white space; percent-encode it")
	case namesSeveralHosts(uri):
		return errors.New("rabbit: Connection.AmqpURI names several hosts; name one of them, and all nodes of the cluster in Nodes")
	}
	return errors.New("rabbit: Connection.AmqpURI is invalid (not shown here because it has a password); " +
		"percent-encode user, password and virtual host, and use numbers for numeric parameters")
}

// PublisherConfig configures a Publisher, in addition to watermill-amqp's Config. The zero value is
// ready for production use.
//
// The pause between attempts to connect doubles, with jitter, from BackoffInitialInterval to
// BackoffMaxInterval of Connection.Reconnect in watermill-amqp's Config, by default 100 ms and 10
// s. There is none before the first attempt after a loss.
type PublisherConfig struct {
	// Window is the maximum number of unconfirmed messages, from 1 to 65536. A large window is
	// fast, but when the connection is lost, up to Window messages have an unknown outcome.
	// Defaults to 1024.
	Window int

	// WindowBytes is the maximum size of the bodies and headers of all unconfirmed messages, and so
	// of the write buffer, in bytes. A larger message is sent when no other is unconfirmed.
	// Defaults to 16 MiB.
	WindowBytes int

	// ConfirmTimeout is how long a message may be unconfirmed before its outcome is reported as
	// unknown. Writing, storing and replicating it must take less. Defaults to 30 s.
	ConfirmTimeout time.Duration

	// ReadyTimeout is how long publishing waits without a connection, or while the broker blocks
	// it. Callers do not notice a shorter loss. Then publishing fails immediately, with an error
	// whose method Unavailable returns true. Defaults to 5 s.
	ReadyTimeout time.Duration

	// Nodes are the nodes of a cluster, as "host" or "host:port" with the port of the URI as the
	// default, in addition to the host of the URI. A host name with several IP addresses also counts
	// as several nodes. The Publisher connects to a random node, and tries the others when the
	// connection is lost, or when the node confirms no message for ConfirmTimeout. The heartbeat
	// then defaults to 2 s, so that a node that hangs is left after 3 s. Defaults to none. See
	// docs/clusters.md.
	Nodes []string

	// DialTimeout limits opening a connection (name resolution, TCP, TLS and AMQP together), and
	// each request to open a channel; after it the connection is closed. A message waits as long for
	// the declaration of its exchange. A Dial function in Connection.AmqpConfig needs its own timeout.
	// Defaults to the connection_timeout of the URI, or 10 s.
	DialTimeout time.Duration

	// WriteTimeout limits a write without progress, which closes the connection. Defaults to 10 s.
	WriteTimeout time.Duration

	// CloseTimeout is how long Close waits for missing confirms, before it reports the rest as
	// unknown. A forwarder that uses the Publisher waits for all confirms first. Defaults to 3 s.
	CloseTimeout time.Duration

	// Logger receives a line for every change of state, such as a lost or blocked connection, or a
	// queue that does not confirm, and no credentials. Defaults to slog's default logger. Set
	// watermill.NopLogger{} to log nothing.
	Logger watermill.LoggerAdapter

	// MeterProvider creates the metrics. Defaults to OpenTelemetry's global provider.
	MeterProvider metric.MeterProvider

	reconnectMin, reconnectMax time.Duration // limit the pause between attempts to connect
}

const maxWindow = 1 << 16

func (cfg PublisherConfig) withDefaults(config amqp.Config) (amqp.Config, PublisherConfig) {
	if config.Marshaler == nil {
		config.Marshaler = Marshaler{}
	}
	if config.TopologyBuilder == nil {
		config.TopologyBuilder = &amqp.DefaultTopologyBuilder{}
	}

	times := connectionTimes{dial: cfg.DialTimeout, write: cfg.WriteTimeout}.withDefaults(config.Connection)
	cfg.DialTimeout, cfg.WriteTimeout = times.dial, times.write
	cfg.reconnectMin, cfg.reconnectMax = times.reconnectMin, times.reconnectMax
	cfg.Window = cmp.Or(cfg.Window, 1024)
	cfg.WindowBytes = cmp.Or(cfg.WindowBytes, 16<<20)
	cfg.ConfirmTimeout = cmp.Or(cfg.ConfirmTimeout, 30*time.Second)
	cfg.ReadyTimeout = cmp.Or(cfg.ReadyTimeout, 5*time.Second)
	cfg.CloseTimeout = cmp.Or(cfg.CloseTimeout, 3*time.Second)
	if cfg.Logger == nil {
		cfg.Logger = watermill.NewSlogLogger(nil)
	}
	return config, cfg
}

func (cfg PublisherConfig) validate(config amqp.Config) error {
	errs := configErrors{validateConnection(config.Connection)}
	errs.requireNodes(cfg.Nodes)
	errs.requiref(config.Exchange.GenerateName != nil, "Exchange.GenerateName is nil")
	errs.requiref(config.Publish.GenerateRoutingKey != nil, "Publish.GenerateRoutingKey is nil")
	errs.requiref(!config.Publish.Transactional,
		"Publish.Transactional is true; set it to false, because it excludes confirms, which report the outcome of a message")
	errs.requiref(!config.Publish.Immediate, "Publish.Immediate is true, which RabbitMQ does not support; set it to false")

	errs.requiref(cfg.Window > 0 && cfg.Window <= maxWindow, "Window is %d; it must be in 1..%d", cfg.Window, maxWindow)
	errs.requiref(cfg.WindowBytes > 0, "WindowBytes is %d; it must be positive", cfg.WindowBytes)
	for _, d := range []duration{
		{"ConfirmTimeout", cfg.ConfirmTimeout},
		{"ReadyTimeout", cfg.ReadyTimeout},
		{"DialTimeout", cfg.DialTimeout},
		{"WriteTimeout", cfg.WriteTimeout},
		{"CloseTimeout", cfg.CloseTimeout},
		{"Connection.Reconnect.BackoffInitialInterval", cfg.reconnectMin},
		{"Connection.Reconnect.BackoffMaxInterval", cfg.reconnectMax},
	} {
		errs.requirePositive(d)
	}
	errs.requiref(cfg.reconnectMin <= cfg.reconnectMax,
		"Connection.Reconnect.BackoffInitialInterval is %v; it must not exceed BackoffMaxInterval, %v", cfg.reconnectMin, cfg.reconnectMax)
	return errors.Join(errs...)
}

// TopicExchange returns a configuration with one durable topic exchange for all topics. The topic
// of a published message is its routing key, such as the event type "orders.placed". The topic of a
// subscription is a pattern with "*" for one word and "#" for any number, as in "orders.*".
//
// For each pattern, each service has a durable queue with the name pattern_service, such as
// "orders.*_billing", in which all matching messages keep their order. For quorum queues, set
// Queue.Arguments. A publisher ignores service.
//
// A message whose routing key matches no pattern is refused, like one to a topic without a queue.
// See docs/topic-exchange.md.
func TopicExchange(uri, exchange, service string) amqp.Config {
	queue := amqp.GenerateQueueNameTopicNameWithSuffix(service)
	config := amqp.NewDurablePubSubConfig(uri, queue)
	config.Marshaler = Marshaler{}
	config.Exchange.Type = "topic"
	config.Exchange.GenerateName = func(string) string { return exchange }
	config.Publish.GenerateRoutingKey = func(topic string) string { return topic }
	suffix := queue("")
	// watermill-amqp passes the name of the queue here.
	config.QueueBind.GenerateRoutingKey = func(queue string) string { return strings.TrimSuffix(queue, suffix) }
	return config
}
