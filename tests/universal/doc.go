// Package universal runs Watermill's test suite for Pub/Subs against the whole
// path of a message: outbox, forwarder and transport.
package universal
