// Package dedup is the inbox: a router middleware that runs the handler of each
// message in one database transaction, and lets each consumer apply each message
// id once.
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
// If the process dies before the commit, nothing has happened, and the message is
// delivered again. If it dies after the commit, the message is delivered again,
// and the insert finds its id. A duplicate that arrives meanwhile waits at the
// insert. It runs only if the first delivery was rolled back.
//
// Handlers can opt in to share their transaction with other messages in flight,
// see [Inbox.BatchMiddleware] and [Inbox.BatchHandler]. The steps are the same,
// each for all messages of the batch at once.
//
// Effects outside that database happen at least once. Use the message id as their
// idempotency key.
//
// # Reading the code
//
// Read config.go, inbox.go (one message, step by step), identity.go (what a
// message is remembered by), errors.go and commit.go (failures), produced.go, and
// queries.go. Then batches: batch.go, batcher.go (collects messages),
// batch_run.go (handles them), batch_claim.go. Then retention: sweep.go, keys.go
// (business keys of parked messages), days.go (the layout schema.ByDay).
package dedup
