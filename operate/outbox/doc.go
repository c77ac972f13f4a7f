// Package outbox shows the messages of an outbox that wait to be forwarded. It retries
// messages immediately, cancels messages, and pauses topics and tenants.
//
//	              ┌─ Retry ───▶ due now
//	once_outbox ──┤
//	              └─ Cancel ──▶ once_outbox_dead
//
// [Messages.Pause] keeps the messages of a topic or a tenant in the outbox until
// [Messages.Resume].
//
// All calls only read and write the tables. So they need no running forwarder, and they
// also work while forwarders run.
//
// No index finds a message by its topic, key or message id, because every index on the
// outbox would slow down the business transactions. So a call reads a limited number of
// rows, and returns the position at which the next call must begin: Page.Next,
// Count.Next and [Backlog.Next]. There is one exception: if few messages back off or
// are delayed, an index finds them.
//
// A forwarder reads messages in advance, without locks. So [Messages.Cancel] moves only
// messages that no forwarder can have read, because one of these conditions is true:
//
//   - the message is due in 5 seconds or later: it backs off or is delayed,
//   - another message of its ordering key blocks the key,
//   - no forwarder has a lease on its slot.
//
// After such a message is cancelled, it is not sent. There is one exception: a
// forwarder had begun to send the message, was then frozen, and lost its lease. Any
// other message needs Plan.Force: a forwarder may be sending it, and may still send
// it after it is cancelled. Even then, the row of the message becomes a dead letter.
//
// For a cancelled message, dead.Letter.Unknown is false only if the message was
// never due, and so was never sent. It is true for all other cancelled messages, even
// if the broker refused them: a forwarder may have sent the message before, and may
// have died before it recorded this.
package outbox
