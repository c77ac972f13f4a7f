// Package eventbus connects Watermill's cqrs component with the outbox and the quarantine.
//
//   - With [Publisher], you need only one event bus. It stores each event in the
//     transaction that the context of the event contains.
//   - [Marshaler] and [KnownEvents] send messages that can never be handled to the
//     quarantine immediately: invalid JSON, and events of an unknown type.
//
// An event bus of Watermill has one publisher, and an outbox publisher has one transaction. Without
// this package, each transaction would need its own event bus.
package eventbus
