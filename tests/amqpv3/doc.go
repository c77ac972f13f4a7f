// Package amqpv3 tests package amqpv3 with RabbitMQ, together with the publisher and the
// subscriber of watermill-amqp v3. It is not in the module of that package, so that users
// of the package do not need the modules that the tests need.
package amqpv3
