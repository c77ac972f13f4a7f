package rabbit

import (
	"cmp"
	"errors"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"go.opentelemetry.io/otel/metric"
)

// PublisherConfig configures a Publisher in addition to watermill-amqp's Config.
// The zero value is ready for production use.
type PublisherConfig struct {
	// Window is the maximal number of outstanding messages: sent and not yet
	// confirmed. A large window makes publishing fast. It is also the maximal
	// number of messages with unknown outcome when the connection is lost. 1 to
	// 65536. Defaults to 1024.
	Window int

	// WindowBytes is the maximal size in bytes of the bodies and headers of all
	// outstanding messages. It also bounds the memory of the write buffer. A
	// larger message is sent when no other message is outstanding. Defaults to
	// 16 MiB.
	WindowBytes int

	// ConfirmTimeout is how long a message may be outstanding before its outcome
	// is reported as unknown. It covers writing, storing and replicating the
	// message. Defaults to 30 s.
	ConfirmTimeout time.Duration

	// ReadyTimeout is how long publishing waits while there is no connection or
	// the broker blocks the connection, so that it bridges a short loss. After
	// that time messages are unavailable at once. Defaults to 5 s.
	ReadyTimeout time.Duration

	// DialTimeout bounds the whole set-up of a connection: name resolution, TCP,
	// TLS and AMQP together. It also bounds each request to open a channel or
	// declare an exchange; a broker that does not reply in time loses the
	// connection. A Dial function in Connection.AmqpConfig must have its own
	// timeout. Defaults to the connection_timeout of the URI, else to 10 s.
	DialTimeout time.Duration

	// WriteTimeout is how long a write to the network may make no progress
	// before the connection is closed. Defaults to 10 s.
	WriteTimeout time.Duration

	// CloseTimeout is how long Close waits for outstanding confirms before it
	// reports the other messages as unknown. A forwarder waits for all confirms
	// before the Publisher is closed, so then Close does not wait. Defaults to
	// 3 s.
	CloseTimeout time.Duration

	// ReconnectMin and ReconnectMax bound the pause between attempts to connect.
	// The pause doubles from ReconnectMin to ReconnectMax, with jitter; the first
	// attempt after a loss has no pause. They default to Connection.Reconnect's
	// initial and maximal interval where that is set, else to 100 ms and 10 s.
	ReconnectMin, ReconnectMax time.Duration

	// Logger receives every change of state: connected, lost, blocked, a queue
	// that does not confirm. It receives no line per message and no credentials.
	// Defaults to slog's default logger; watermill.NopLogger{} silences it.
	Logger watermill.LoggerAdapter

	// MeterProvider creates the instruments. Defaults to OpenTelemetry's global
	// provider, which does nothing until another one is set.
	MeterProvider metric.MeterProvider
}

const maxWindow = 1 << 16

// withDefaults replaces zero values in both configurations.
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

// validate returns the errors of all invalid fields.
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
