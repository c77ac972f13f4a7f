// Package local is the embedded transport: it delivers without a broker, by
// committing a parked row for every consumer that is registered for a topic.
//
// Publish returns nil only when those rows are committed, so nil is a confirm;
// Watermill's GoChannel cannot give that, as it also returns nil when nobody
// listens. With no consumer registered Publish refuses the message, as a
// broker refuses what it cannot route.
//
// It serves a modular monolith for real, on SQLite or PostgreSQL: publisher
// and consumers share a process and a database. It does not show what a broker
// adds: confirms over a network, redelivery, restarts of either side alone.
package local
