// Package universal runs Watermill's suite for every Pub/Sub against the whole
// way of a message: a transaction of the outbox, the forwarder, and a transport.
package universal
