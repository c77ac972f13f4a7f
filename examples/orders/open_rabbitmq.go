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
func (a *app) openRabbitMQ(p *part, logger watermill.LoggerAdapter) (service.Transport, error) {
	transport, err := service.NewRabbitMQ(a.options.amqp, a.options.namespace, logger)
	if err != nil {
		return nil, fmt.Errorf("-amqp: %w", err)
	}
	if a.demo.Wire == nil { // the services share the broker
		wire, err := demo.NewRabbitMQWire(a.options.amqp, transport)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("-amqp: %w", err), transport.Close())
		}
		a.closeLater(wire.Close)
		a.demo.Wire = wire
	}
	fmt.Fprintf(a.say, "%s: PostgreSQL (schema %s) and RabbitMQ (exchanges %s.*)\n",
		p.names[0], p.database.Tables.Schema, a.options.namespace)
	return transport, nil
}

// validAMQP reports whether url can be parsed.
func validAMQP(url string) bool {
	_, err := amqp091.ParseURI(url)
	return err == nil
}
