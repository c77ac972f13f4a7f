// Package once makes Watermill consumers and producers safe: each event that a database
// transaction commits is published, and each consumer applies each message once. It
// adds a transactional outbox with a forwarder to RabbitMQ, an inbox that skips
// duplicates, retries, and a quarantine for messages that keep failing. It works with
// PostgreSQL and SQLite, and with your existing routers and handlers.
//
// Start with [NewConsumer]: it adds handlers with the whole chain to a router, and
// checks the configuration when the router starts. [Run] runs the parts of a service
// and stops them in the right order.
//
// # Promises
//
//   - An event that a transaction commits is published at least once; an event of a
//     transaction that is rolled back is never published (outbox, forwarder).
//   - A consumer's database effect happens once per message id and consumer (dedup).
//   - A failing message does not block its queue (retry).
//   - A message that keeps failing is neither redelivered forever nor lost (poison).
//   - Messages of one ordering key reach the broker in order (forwarder).
//
// Effects outside the consumer's database happen at least once: use the message id as
// the idempotency key of such effects.
//
// # The chain of a consumer
//
//	transport ───────────┐
//	parked, due messages ┴─ retry.Subscriber ─ poison ─ retry ─ dedup ─ handler
//	                                                             └─ one transaction: inbox row, business rows, outbox rows
//
// dedup is innermost, because each attempt needs its own transaction: PostgreSQL
// accepts no statement after a failed one. poison is outermost, because it stores the
// messages that retry gives up on. Put a middleware that recovers from panics outside
// of all three, because retry and poison treat a panic as a failed attempt. Two more
// parts are optional: sequence compares versions inside of dedup, and a durable
// consumer stores and acks messages between the transport and retry.Subscriber.
//
// # The parts
//
// Each part is a package that you can also use alone, on your own router. [Plugin] then
// makes the same checks as a Consumer.
//
//   - outbox stores events in a transaction; forwarder sends them to the broker
//   - rabbit is a publisher and subscriber for RabbitMQ; embedded is a transport
//     without a broker
//   - dedup is the inbox, retry retries messages, and poison is the quarantine
//   - sequence applies versions in order; durable stores and acks messages before they
//     are handled
//   - eventbus connects Watermill's cqrs component with the outbox and the quarantine;
//     its package cloudevents is a marshaler for CloudEvents
//   - idempotency answers repeated HTTP requests
//   - schema creates and checks the tables; mover copies waiting messages from the
//     table of Watermill's own forwarder into the outbox; lazytx saves a round trip for
//     each transaction
//   - oncetest tests whether a handler is safe
package once
