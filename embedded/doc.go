// Package embedded is a transport without a broker: it stores a parked row for
// every consumer that is registered for a topic.
//
// Publish returns nil only after the commit of those rows, so nil is a confirm.
// Watermill's GoChannel cannot give a confirm, because it also returns nil if
// nobody listens. Without a registered consumer Publish refuses the message, as a
// broker refuses an unroutable message.
//
// The first subscription of a consumer to a topic registers the consumer in the
// database, as a queue is bound to an exchange. The consumer stays registered when
// its process ends. Messages that are published meanwhile wait for it, so
// publishers and consumers may restart in any order. [Transport.Forget] ends a
// registration. If a registered consumer never runs again, its messages pile up,
// and Publish logs an error.
//
// The transport is for production use in a modular monolith, on SQLite or
// PostgreSQL: publisher and consumers share a database, and usually a process. It
// cannot show the behaviour of a broker, such as confirms over a network or
// redelivery.
//
// To read the code, start with transport.go (API), then publish.go, subscribe.go
// and forget.go.
package embedded
