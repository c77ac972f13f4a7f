// Package embedded is a transport without a broker. It stores each message in the
// database, in a parked row for each consumer that is registered for the topic.
//
// Publish returns nil only after these rows are committed, so nil is a confirm, unlike that of
// Watermill's GoChannel without a subscriber. If no consumer is registered, Publish refuses the
// message, as a broker refuses an unroutable one.
//
// The first subscription of a consumer to a topic registers the consumer in the database, like a
// queue that is bound to an exchange. Messages that are published while no process runs it wait for
// it, so publishers and consumers may restart in any order. [Transport.Forget] ends a registration.
// If a registered consumer never runs again, its messages accumulate, and Publish logs an error.
//
// The transport is for production use in a modular monolith, on SQLite or PostgreSQL: publisher and
// consumers share a database, and usually a process. A test with it does not show the behavior of a
// broker, such as confirms over a network or redelivery.
package embedded
