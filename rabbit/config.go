package rabbit

import (
	"cmp"
	"errors"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"go.opentelemetry.io/otel/metric"
)

// PublisherConfig is what a Publisher needs beyond watermill-amqp's Config. The
// zero value is a good choice.
type PublisherConfig struct {
	// Window is how many messages may be outstanding: sent and not yet
	// confirmed. It is what makes publishing fast, and how many messages are of
	// unknown outcome when the connection is lost. 1 to 65536. Defaults to 1024.
	Window int

	// WindowBytes bounds the bodies and headers of the outstanding messages in
	// bytes, and with them the memory of the write buffer. A message that is
	// larger is sent when nothing else is outstanding. Defaults to 16 MiB.
	WindowBytes int

	// ConfirmTimeout is how long a message may be outstanding before its outcome
	// is reported as unknown. It covers writing, storing and replicating it.
	// Defaults to 30 s.
	ConfirmTimeout time.Duration

	// ReadyTimeout is how long there may be no connection, or the broker block
	// it, before messages are reported as unavailable. Until then publishing
	// waits, which bridges a short loss; from then on it fails at once. Defaults
	// to 5 s.
	ReadyTimeout time.Duration

	// DialTimeout bounds everything that sets up a connection: name resolution,
	// TCP, TLS and AMQP together; and each request to open a channel or declare
	// an exchange, after which a broker that does not answer loses the
	// connection. A Dial function in Connection.AmqpConfig has to bound itself.
	// Defaults to the connection_timeout of the URI, else to 10 s.
	DialTimeout time.Duration

	// WriteTimeout is how long a write to the network may make no progress
	// before the connection is given up. Defaults to 10 s.
	WriteTimeout time.Duration

	// CloseTimeout is how long Close waits for outstanding confirms before it
	// reports the rest as unknown. Behind a forwarder, which has waited for them
	// already, there are none. Defaults to 3 s.
	CloseTimeout time.Duration

	// ReconnectMin and ReconnectMax bound the pause between attempts to connect.
	// It doubles from one to the other, with jitter; the first attempt after a
	// loss is made at once. Default to Connection.Reconnect's initial and
	// maximal interval where that is set, else to 100 ms and 10 s.
	ReconnectMin, ReconnectMax time.Duration

	// Logger hears of every change: connected, lost, blocked, a queue that does
	// not confirm. It hears nothing per message, and no credentials. Defaults to
	// slog's default logger; watermill.NopLogger{} silences it.
	Logger watermill.LoggerAdapter

	// MeterProvider is where the instruments are made. Defaults to
	// OpenTelemetry's global one, which does nothing until another is set.
	MeterProvider metric.MeterProvider
}

const maxWindow = 1 << 16

// withDefaults fills in both configs as the Publisher uses them.
func withDefaults(config amqp.Config, cfg PublisherConfig) (amqp.Config, PublisherConfig) {
	if config.Marshaler == nil {
		config.Marshaler = Marshaler{}
	}
	if config.TopologyBuilder == nil {
		config.TopologyBuilder = &amqp.DefaultTopologyBuilder{}
	}

	connection := connectionDefaults(config.Connection, connectionTimes{
		dial: cfg.DialTimeout, write: cfg.WriteTimeout, low: cfg.ReconnectMin, high: cfg.ReconnectMax,
	})
	cfg.DialTimeout, cfg.WriteTimeout = connection.dial, connection.write
	cfg.ReconnectMin, cfg.ReconnectMax = connection.low, connection.high
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

// validate names everything that is wrong, at once.
func validate(config amqp.Config, cfg PublisherConfig) error {
	c := checks{validateConnection(config.Connection)}
	c.checkf(config.Exchange.GenerateName != nil, "Exchange.GenerateName is nil")
	c.checkf(config.Publish.GenerateRoutingKey != nil, "Publish.GenerateRoutingKey is nil")
	c.checkf(!config.Publish.Transactional,
		"Publish.Transactional excludes confirms, without which nothing is known of a message")
	c.checkf(!config.Publish.Immediate, "Publish.Immediate is not supported by RabbitMQ")

	c.checkf(cfg.Window > 0 && cfg.Window <= maxWindow, "Window is %d, not in 1..%d", cfg.Window, maxWindow)
	c.checkf(cfg.WindowBytes > 0, "WindowBytes is %d: not positive", cfg.WindowBytes)
	for _, d := range []duration{
		{"ConfirmTimeout", cfg.ConfirmTimeout},
		{"ReadyTimeout", cfg.ReadyTimeout},
		{"DialTimeout", cfg.DialTimeout},
		{"WriteTimeout", cfg.WriteTimeout},
		{"CloseTimeout", cfg.CloseTimeout},
		{"ReconnectMin", cfg.ReconnectMin},
		{"ReconnectMax", cfg.ReconnectMax},
	} {
		c.positive(d)
	}
	c.checkf(cfg.ReconnectMin <= cfg.ReconnectMax,
		"ReconnectMin is %v: more than ReconnectMax, %v", cfg.ReconnectMin, cfg.ReconnectMax)
	return errors.Join(c...)
}
