// Package outbox shows the messages of an outbox that wait to be forwarded, retries them
// immediately, cancels them, and pauses topics and tenants.
//
//	              ┌─ Retry ───▶ due now
//	once_outbox ──┤
//	              └─ Cancel ──▶ once_outbox_dead
//
// [Messages.Pause] keeps the messages of a topic or a tenant in the outbox until [Messages.Resume].
// All calls only read and write the tables. So they need no running forwarder, and they
// also work while forwarders run.
//
// No index finds a message by its topic, key or message id, because every index on the outbox would
// slow down the business transactions. So a call reads a limited number of rows, and returns where
// the next one must begin: Page.Next, Count.Next and [Backlog.Next]. An index finds only messages
// that back off or are delayed, if they are few.
//
// A forwarder reads messages in advance, without locks. So [Messages.Cancel] moves only messages
// that no forwarder can have read:
//
//   - the message is due in 5 seconds or later: it backs off or is delayed,
//   - another message of its ordering key blocks the key,
//   - no forwarder has a lease on its slot.
//
// Such a message is not sent after it is cancelled, except by a forwarder that had begun to send
// it, was then frozen, and lost its lease. Any other message needs Plan.Force: a forwarder may
// still send it after it has become a dead letter.
//
// For a cancelled message, dead.Letter.Unknown is false only if it was never due, and so was never
// sent. Otherwise a forwarder may have sent it, even if the broker refused it since, and died
// before it recorded this.
package outbox
