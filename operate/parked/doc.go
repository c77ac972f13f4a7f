// Package parked shows the parked messages in a consumer's database. It makes waiting
// messages due immediately, cancels and discards messages, and shows the consumers with
// their instances and backlog.
//
//	              ┌─ RunNow ───▶ due now
//	once_parked ──┼─ Cancel ───▶ quarantine, where package quarantine can replay them
//	              └─ Discard ──▶ ended, and known to the inbox
//
// All calls only read and write the tables. So they need no running consumer, and they
// also work while consumers run.
//
// A consumer claims a message for the time of a lease, which it renews while the
// handler runs. No call of this package changes a claimed message before its lease has
// ended. For such a message, a call with IDs returns [ErrClaimed]. A call with a Filter
// skips the message and reports it. If a handler does not return, stop the consumer and
// wait for the end of the lease. A call locks the rows that it changes, so that no
// consumer can claim these rows until the call has ended.
//
// If the lease has ended and the message was not settled, the process died or is
// frozen. You can change such a message. [Report].Abandoned lists it. Before the
// change, Cancel and Discard check the inbox, and wait up to a second for a transaction
// that is handling the message. If the consumer has handled the message, Cancel and
// Discard do not change it, and report it. A frozen process that continues later
// notices that its lease has ended, and dedup does not call the handler. A middleware
// chain without dedup, and a consumer listed in dedup.Config.Idempotent, cannot notice
// this while the handler runs.
//
// Cancel and Discard keep the order of the other messages with the same ordering key:
// if the message was the head of its key, the first message that is held behind it
// becomes the head in the same transaction.
//
// A call reads a limited number of rows, and returns the position at which the next
// call must begin: [Page.Next] and [Count.Next]. Indexes find the messages with a given
// id, the messages in quarantine, and the waiting or held messages of one consumer if
// there are few of them.
package parked
