package main

import (
	"errors"
	"fmt"

	"github.com/ThreeDotsLabs/watermill"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/watermill-once/once/examples/orders/demo"
	"github.com/watermill-once/once/examples/orders/service"
)

// openRabbitMQ connects to the broker at -amqp.
func (a *app) openRabbitMQ(logger watermill.LoggerAdapter) (service.Transport, demo.Wire, error) {
	transport, err := service.NewRabbitMQ(a.options.amqp, a.options.namespace, logger)
	if err != nil {
		return nil, nil, fmt.Errorf("-amqp: %w", err)
	}
	wire, err := demo.NewRabbitMQWire(a.options.amqp, transport)
	if err != nil {
		return nil, nil, errors.Join(fmt.Errorf("-amqp: %w", err), transport.Close())
	}
	fmt.Fprintf(a.say, "orders: PostgreSQL (schema %s) and RabbitMQ (exchanges %s.*)\n", a.options.schema, a.options.namespace)
	return transport, wire, nil
}

// validAMQP reports whether url can be parsed.
func validAMQP(url string) bool {
	_, err := amqp091.ParseURI(url)
	return err == nil
}
