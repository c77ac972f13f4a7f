// Package dedup is the inbox: a router middleware that runs the handler of each message in one
// database transaction, so that each consumer applies each message id once.
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
// If the process dies before the commit, nothing has happened, and the message is delivered again.
// After the commit, the insert finds the id of the copy. A duplicate that arrives while the message
// is being handled waits at the insert, and runs only if the first delivery is rolled back.
//
// A handler can share its transaction with other messages in flight, see [Inbox.BatchMiddleware]
// and [Inbox.BatchHandler]. Each step is then done once for all of them.
//
// Effects outside of this database happen at least once. Use the message id as the idempotency key
// of such effects.
package dedup
