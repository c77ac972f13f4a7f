// Package dedup is the inbox: a router middleware that gives every message one
// database transaction and lets each consumer apply each message id once.
//
// For a message with a new id the steps are
//
//	begin
//	insert (message_id, consumer) into the inbox
//	handler, with the transaction in its context
//	insert the messages that it produced into the outbox
//	commit
//	ack
//
// and the transaction is all there is: if the process dies before the commit,
// nothing has happened and the message comes again; if it dies after, the
// message comes again and the insert finds it done. A second copy that arrives
// meanwhile waits at the insert, and runs only if the first was rolled back.
//
// Handlers that say so share their transaction with other messages that are in
// flight, see [Inbox.BatchMiddleware] and [Inbox.BatchHandler]: the steps are the
// same, each of them for all messages at once.
//
// Effects outside that database are at least once. Pass the message id on as
// the idempotency key.
package dedup
