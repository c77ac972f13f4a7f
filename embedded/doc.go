// Package embedded is a transport without a broker. It stores each message in the
// database, in a parked row for each consumer that is registered for the topic.
//
// Publish returns nil only after these rows are committed, so nil is a confirm.
// Watermill's GoChannel cannot confirm, because it also returns nil if it has no
// subscriber. If no consumer is registered, Publish refuses the message, as a broker
// refuses an unroutable message.
//
// The first subscription of a consumer to a topic registers the consumer in the
// database. This is like binding a queue to an exchange. The consumer stays registered
// when its process ends. Messages that are published while no process runs the consumer
// wait for it, so publishers and consumers may restart in any order. [Transport.Forget]
// ends a registration. If a registered consumer never runs again, its messages
// accumulate, and Publish logs an error.
//
// The transport is for production use in a modular monolith, on SQLite or PostgreSQL.
// Publisher and consumers share a database, and usually a process. A test with this
// transport does not show the behavior of a broker, such as confirms over a network or
// redelivery.
package embedded
