// Package forwarding tests the path from the outbox to RabbitMQ: a row in a
// real database, the packages forwarder and rabbit, a queue of a real broker,
// and the failures in between.
package forwarding
