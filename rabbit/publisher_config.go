package rabbit

import (
	"cmp"
	"errors"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"go.opentelemetry.io/otel/metric"
)

// PublisherConfig configures a Publisher, in addition to watermill-amqp's Config. The
// zero value is ready for production use.
type PublisherConfig struct {
	// Window is the maximum number of messages that were sent and are not confirmed yet,
	// from 1 to 65536. A large window makes publishing fast. But when the connection is
	// lost, up to Window messages have an unknown outcome. Defaults to 1024.
	Window int

	// WindowBytes is the maximum size of the bodies and headers of all unconfirmed
	// messages, in bytes. It also limits the memory of the write buffer. A message that is
	// larger than WindowBytes is sent when no other message is unconfirmed. Defaults to 16
	// MiB.
	WindowBytes int

	// ConfirmTimeout is how long a message may be unconfirmed. After this time, its outcome
	// is reported as unknown. Writing, storing and replicating the message must take less
	// than this time. Defaults to 30 s.
	ConfirmTimeout time.Duration

	// ReadyTimeout is how long publishing waits if there is no connection or the broker
	// blocks the connection. Callers do not notice a shorter loss of the connection. After
	// ReadyTimeout, publishing fails immediately, with an error whose method Unavailable
	// returns true. Defaults to 5 s.
	ReadyTimeout time.Duration

	// DialTimeout limits the time for opening a connection: name resolution, TCP, TLS and
	// AMQP together. It also limits each request to open a channel or declare an
	// exchange. If the broker does not reply in time, the connection is closed. A Dial
	// function in Connection.AmqpConfig needs its own timeout. Defaults to the
	// connection_timeout of the URI. If the URI has none, it defaults to 10 s.
	DialTimeout time.Duration

	// WriteTimeout is how long a write to the network may make no progress. After this
	// time, the connection is closed. Defaults to 10 s.
	WriteTimeout time.Duration

	// CloseTimeout is how long Close waits for missing confirms. After this time, it
	// reports the outcome of the remaining messages as unknown. If a forwarder uses the
	// Publisher, Close need not wait, because the forwarder waits for all confirms first.
	// Defaults to 3 s.
	CloseTimeout time.Duration

	// ReconnectMin and ReconnectMax limit the pause between attempts to connect. The pause
	// doubles from ReconnectMin to ReconnectMax, with jitter. Before the first attempt
	// after a loss there is no pause. ReconnectMin and ReconnectMax default to the initial
	// and the maximal interval in Connection.Reconnect. If Connection.Reconnect is not set,
	// they default to 100 ms and 10 s.
	ReconnectMin, ReconnectMax time.Duration

	// Logger receives a line for every change of state, such as a lost or blocked
	// connection, or a queue that does not confirm. It receives no line for each message,
	// and no credentials. Defaults to slog's default logger. To log nothing, set
	// watermill.NopLogger{}.
	Logger watermill.LoggerAdapter

	// MeterProvider creates the metrics. Defaults to OpenTelemetry's global provider,
	// which does nothing until you set another provider.
	MeterProvider metric.MeterProvider
}

const maxWindow = 1 << 16

// withDefaults returns both configurations with default values in place of zero values.
func (cfg PublisherConfig) withDefaults(config amqp.Config) (amqp.Config, PublisherConfig) {
	if config.Marshaler == nil {
		config.Marshaler = Marshaler{}
	}
	if config.TopologyBuilder == nil {
		config.TopologyBuilder = &amqp.DefaultTopologyBuilder{}
	}

	times := connectionTimes{
		dial: cfg.DialTimeout, write: cfg.WriteTimeout, reconnectMin: cfg.ReconnectMin, reconnectMax: cfg.ReconnectMax,
	}.withDefaults(config.Connection)
	cfg.DialTimeout, cfg.WriteTimeout = times.dial, times.write
	cfg.ReconnectMin, cfg.ReconnectMax = times.reconnectMin, times.reconnectMax
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

// validate returns an error that names every invalid field.
func (cfg PublisherConfig) validate(config amqp.Config) error {
	errs := configErrors{validateConnection(config.Connection)}
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
		{"ReconnectMin", cfg.ReconnectMin},
		{"ReconnectMax", cfg.ReconnectMax},
	} {
		errs.requirePositive(d)
	}
	errs.requiref(cfg.ReconnectMin <= cfg.ReconnectMax,
		"ReconnectMin is %v; it must not exceed ReconnectMax, %v", cfg.ReconnectMin, cfg.ReconnectMax)
	return errors.Join(errs...)
}
