// Package local is the embedded transport: it delivers without a broker, by
// committing a parked row for every consumer that is registered for a topic.
//
// Publish returns nil only when those rows are committed, so nil is a confirm;
// Watermill's GoChannel cannot give that, as it also returns nil when nobody
// listens. With no consumer registered Publish refuses the message, as a
// broker refuses what it cannot route.
//
// A consumer is registered for a topic by its first subscription, in the table
// of consumers, as a queue is bound to an exchange. It stays registered when
// its process ends: what is published meanwhile waits for it, in whichever order
// publishers and consumers start again. [Transport.Forget] ends a registration.
// Messages pile up for a consumer that is registered and never runs again;
// Publish logs an error about it.
//
// It serves a modular monolith for real, on SQLite or PostgreSQL: publisher
// and consumers share a database, and mostly a process. It does not show what a
// broker adds: confirms over a network, redelivery.
package embedded
