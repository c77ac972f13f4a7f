// Package eventbus connects Watermill's cqrs component with the outbox and the
// quarantine.
//
//   - [Publisher] lets one event bus, made at start, store each event in the
//     transaction of its context.
//   - [Marshaler] and [KnownEvents] send messages that can never be handled to the
//     quarantine at once: invalid JSON, and events of an unknown type.
//
// An event bus of Watermill has one publisher, and an outbox publisher has one
// transaction. Without this package each transaction needs an event bus of its own.
//
// To read the code, start with publisher.go, then marshaler.go.
package eventbus
