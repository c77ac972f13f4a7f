package once

import (
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/watermill-once/once/dedup"
	"github.com/watermill-once/once/durable"
	"github.com/watermill-once/once/eventbus"
	"github.com/watermill-once/once/internal/usercode"
	"github.com/watermill-once/once/outbox"
	"github.com/watermill-once/once/poison"
	"github.com/watermill-once/once/retry"
	"github.com/watermill-once/once/schema"
	"github.com/watermill-once/once/sequence"
)

// ConsumerConfig configures a [Consumer]. The zero value is ready for use. Schema,
// Logger, MeterProvider and TracerProvider are the defaults for all parts.
type ConsumerConfig struct {
	// Schema selects the database and the prefix of the tables. Defaults to PostgreSQL and "once_".
	Schema schema.Config

	// DurableConsumers are the names of durable consumers, configured by Durable: their messages
	// are stored and acked first, and handled later. All others are handled while the transport
	// waits for the ack. When a router starts, names in DurableConsumers and Dedup.Idempotent that
	// belong to no handler are logged as errors. Defaults to none.
	DurableConsumers []string
	Durable          durable.Config

	// Dedup, Retry and Poison configure the parts of the chain. Dedup.Outbox defaults to the outbox
	// of the same Schema. Dedup.Consumer must be "", because each handler has its own consumer
	// name.
	Dedup  dedup.Config
	Retry  retry.Config
	Poison poison.Config

	// Check checks the messages that handlers return, see outbox.Config.Check. Set it to
	// rabbit.Check if the forwarder sends to RabbitMQ. It must be nil if Dedup.Outbox is set.
	// Defaults to nil: a message that the broker can never accept then becomes a dead letter.
	Check func(topic string, msg *message.Message) error

	// Sequence configures how the version in a message is compared with those that the consumer has
	// applied. With &sequence.Config{}, older versions are ignored. Sequence.Tx defaults to
	// dedup.TxFromContext, and Sequence.Window to 15 minutes, or longer if Retry retries for
	// longer. Defaults to nil: no versions are compared.
	Sequence *sequence.Config

	// Marshaler reads the events of handlers that are added with [Handle], for example
	// cqrs.JSONMarshaler{} or cqrs.ProtoMarshaler{}. Its names distinguish the events of a topic.
	// Defaults to JSON as encoding/json reads it, without names.
	Marshaler eventbus.CommandEventMarshaler

	// Logger defaults to slog's default logger. Use watermill.NopLogger{} for silence.
	Logger watermill.LoggerAdapter

	// MeterProvider creates the metrics, and TracerProvider the spans of all parts and of the
	// outbox for produced messages. Both default to OpenTelemetry's global providers.
	MeterProvider  metric.MeterProvider
	TracerProvider trace.TracerProvider
}

// windowFor returns the default of sequence.Config.Window, an eighth longer than retries, for the
// handler's last attempt, and at least 15 minutes.
func windowFor(longestRetry time.Duration) time.Duration {
	const limit = 30 * 24 * time.Hour
	longestRetry = min(longestRetry, limit)
	return max(usercode.DefaultSequenceWindow, longestRetry+longestRetry/8)
}

// withSharedDefaults refuses a part with another schema, and Check with Dedup.Outbox.
func (c ConsumerConfig) withSharedDefaults() (ConsumerConfig, error) {
	order := sequence.Config{} // a placeholder if c.Sequence is nil
	if c.Sequence != nil {
		order = *c.Sequence
		c.Sequence = &order // a copy: the caller's Config does not change
	}
	if order.Tx == nil {
		order.Tx = dedup.TxFromContext
	}
	for _, part := range []struct {
		name   string
		schema *schema.Config
	}{
		{"Durable", &c.Durable.Schema},
		{"Dedup", &c.Dedup.Schema},
		{"Retry", &c.Retry.Schema},
		{"Poison", &c.Poison.Schema},
		{"Sequence", &order.Schema},
	} {
		if *part.schema == (schema.Config{}) {
			*part.schema = c.Schema
		}
		if part.schema.WithDefaults() != c.Schema.WithDefaults() {
			return c, fmt.Errorf("once: %s.Schema is %+v, but Schema is %+v: the parts share their tables, leave %s.Schema empty",
				part.name, part.schema.WithDefaults(), c.Schema.WithDefaults(), part.name)
		}
	}
	for _, part := range []*watermill.LoggerAdapter{
		&c.Durable.Logger, &c.Dedup.Logger, &c.Retry.Logger, &c.Poison.Logger, &order.Logger,
	} {
		if *part == nil {
			*part = c.Logger
		}
	}
	for _, part := range []*metric.MeterProvider{
		&c.Durable.MeterProvider, &c.Dedup.MeterProvider, &c.Retry.MeterProvider, &c.Poison.MeterProvider, &order.MeterProvider,
	} {
		if *part == nil {
			*part = c.MeterProvider
		}
	}
	for _, part := range []*trace.TracerProvider{&c.Dedup.TracerProvider, &c.Retry.TracerProvider, &c.Poison.TracerProvider} {
		if *part == nil {
			*part = c.TracerProvider
		}
	}
	if c.Dedup.Outbox != nil && c.Check != nil {
		return c, errors.New("once: Check and Dedup.Outbox are set: set outbox.Config.Check of that outbox, and leave Check empty")
	}
	if c.Dedup.Outbox == nil {
		box, err := outbox.New(outbox.Config{
			Schema: c.Schema, Check: c.Check, MeterProvider: c.MeterProvider, TracerProvider: c.TracerProvider,
		})
		if err != nil {
			return c, err
		}
		c.Dedup.Outbox = box.Publisher
	}
	return c, nil
}
