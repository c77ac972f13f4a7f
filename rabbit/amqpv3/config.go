package amqpv3

import (
	"github.com/ThreeDotsLabs/watermill"
	amqpv2 "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill-amqp/v3/pkg/amqp"
	amqp091 "github.com/rabbitmq/amqp091-go"
)

func converted(config amqp.Config) amqpv2.Config {
	return amqpv2.Config{
		Connection: amqpv2.ConnectionConfig{
			AmqpURI:    config.Connection.AmqpURI,
			TLSConfig:  config.Connection.TLSConfig,
			AmqpConfig: config.Connection.AmqpConfig,
			Reconnect:  (*amqpv2.ReconnectConfig)(config.Connection.Reconnect),
		},
		Marshaler: config.Marshaler,
		Exchange: amqpv2.ExchangeConfig{
			GenerateName: config.Exchange.GenerateName,
			Type:         config.Exchange.Type,
			Durable:      config.Exchange.Durable,
			AutoDeleted:  config.Exchange.AutoDeleted,
			Internal:     config.Exchange.Internal,
			NoWait:       config.Exchange.NoWait,
			Arguments:    config.Exchange.Arguments,
		},
		Queue: amqpv2.QueueConfig{
			GenerateName: amqpv2.QueueNameGenerator(config.Queue.GenerateName),
			Durable:      config.Queue.Durable,
			AutoDelete:   config.Queue.AutoDelete,
			Exclusive:    config.Queue.Exclusive,
			NoWait:       config.Queue.NoWait,
			Arguments:    config.Queue.Arguments,
		},
		QueueBind: amqpv2.QueueBindConfig(config.QueueBind),
		Publish:   amqpv2.PublishConfig(config.Publish),
		Consume: amqpv2.ConsumeConfig{
			NoRequeueOnNack: config.Consume.NoRequeueOnNack,
			Consumer:        config.Consume.Consumer,
			Exclusive:       config.Consume.Exclusive,
			NoLocal:         config.Consume.NoLocal,
			NoWait:          config.Consume.NoWait,
			Qos:             amqpv2.QosConfig(config.Consume.Qos),
			Arguments:       config.Consume.Arguments,
		},
		TopologyBuilder: newTopologyBuilder(config),
	}
}

// topologyBuilder lets package rabbit call a TopologyBuilder of v3.
type topologyBuilder struct{ config amqp.Config }

func newTopologyBuilder(config amqp.Config) *topologyBuilder {
	if config.TopologyBuilder == nil {
		config.TopologyBuilder = &amqp.DefaultTopologyBuilder{}
	}
	return &topologyBuilder{config}
}

func (b *topologyBuilder) ExchangeDeclare(channel *amqp091.Channel, exchange string, config amqpv2.Config) error {
	return b.config.TopologyBuilder.ExchangeDeclare(channel, exchange, b.with(config))
}

// BuildTopologyOfTopic is called by package rabbit in place of BuildTopology.
func (b *topologyBuilder) BuildTopologyOfTopic(
	channel *amqp091.Channel, topic, queue, exchange string, config amqpv2.Config, logger watermill.LoggerAdapter,
) error {
	return b.config.TopologyBuilder.BuildTopology(channel, amqp.BuildTopologyParams{
		Topic:        topic,
		QueueName:    queue,
		ExchangeName: exchange,
		RoutingKey:   config.QueueBind.GenerateRoutingKey(topic),
	}, b.with(config), logger)
}

// BuildTopology satisfies the interface of v2, with the name of the queue as the topic.
func (b *topologyBuilder) BuildTopology(
	channel *amqp091.Channel, queue, exchange string, config amqpv2.Config, logger watermill.LoggerAdapter,
) error {
	return b.BuildTopologyOfTopic(channel, queue, queue, exchange, config, logger)
}

func (b *topologyBuilder) with(config amqpv2.Config) amqp.Config {
	changed := b.config
	changed.Queue.Arguments = config.Queue.Arguments
	changed.Exchange.Durable = config.Exchange.Durable
	return changed
}
