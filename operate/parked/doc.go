// Package parked shows the parked messages in a consumer's database, makes waiting ones due
// immediately, cancels and discards them, and shows the consumers with their instances and backlog.
//
//	              ┌─ RunNow ───▶ due now
//	once_parked ──┼─ Cancel ───▶ quarantine, where package quarantine can replay them
//	              └─ Discard ──▶ ended, and known to the inbox
//
// All calls only read and write the tables, so they work with and without a running consumer.
//
// A consumer claims a message for the time of a lease, which it renews while the handler runs. No
// call of this package changes a claimed message before its lease has ended: with IDs it returns
// [ErrClaimed], and with a Filter it skips and reports the message. If a handler does not return,
// stop the consumer and wait for the end of the lease. No consumer can claim a row while a call
// changes it.
//
// If the lease has ended and the message was not settled, the process died or is frozen. You can
// change such a message, and [Report].Abandoned lists it. Cancel and Discard first check the inbox,
// and wait up to a second for a transaction that is handling the message; one that was handled is
// reported, and not changed. A frozen process that continues notices that its lease has ended, and
// dedup does not call the handler. A chain without dedup, and a consumer in
// dedup.Config.Idempotent, cannot notice this while the handler runs.
//
// Cancel and Discard keep the order of an ordering key: if the message was its head, the first held
// message becomes the head in the same transaction.
//
// A call reads a limited number of rows, and returns where the next one must begin: [Page.Next] and
// [Count.Next]. Indexes find the messages with a given id, those in quarantine, and few waiting or
// held messages of one consumer.
package parked
