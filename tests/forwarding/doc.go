// Package forwarding holds tests of the way from the outbox to RabbitMQ: a row
// in a real database, package forwarder, package rabbit, a queue of a real
// broker, and everything that can break in between.
package forwarding
