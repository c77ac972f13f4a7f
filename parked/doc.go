// Package parked shows the messages that are in a consumer's database, runs those that
// wait now, cancels and discards messages, and shows the consumers with their instances
// and backlog.
//
//	              ┌─ RunNow ───▶ due now
//	once_parked ──┼─ Cancel ───▶ quarantine, where package poison can replay them
//	              └─ Discard ──▶ ended, and known to the inbox
//
// All calls work on the tables. They need no running consumer, and any number may run.
//
// A consumer claims a message for the length of a lease, which it renews while the
// handler runs. No call here changes a message while its lease lasts: the calls that
// take IDs return [ErrClaimed], the others skip the message and report it. Stop the
// consumer if its handler does not return, and wait for the lease. A call locks the rows
// that it changes, so that no consumer can claim them meanwhile.
//
// If the lease has ended without a result, the process died or is frozen. Such a message
// can be changed, and [Report].Abandoned has it. Before that, Cancel and Discard look in
// the inbox, and wait up to a second for a transaction that is handling the message. If
// the consumer has handled it, they leave it alone and report it. A frozen process
// that continues later notices that its lease has ended: dedup calls no handler. A chain
// without dedup cannot notice that during a handler, nor can a consumer that is
// idempotent by nature.
//
// Cancel and Discard keep the order of keys: if the message was the head of its key, the
// first message that is held behind it becomes the head in the same transaction.
//
// A call looks at a bounded number of rows and says where the next call has to begin:
// [Page.Next] and [Count.Next]. Messages of one id, the messages in quarantine, and the
// waiting or held messages of one consumer are found by an index while they are few.
//
// To read the code, start with message.go and window.go (reading), then change.go,
// candidate.go and apply.go (changing), then consumers.go.
package parked
